-- +goose Up

-- Messages that are accepted and not due yet. A row is written in its push's transaction, under the lock of its shard, and deleted in the transaction that
-- appends it to that shard.
CREATE TABLE dispatcher.delayed (
    key          uuid        NOT NULL CONSTRAINT delayed_key_pk PRIMARY KEY, -- the pending id; also a row of idempotency_keys, which outlives this one
    shard_id     bigint      NOT NULL,
    available_at timestamptz NOT NULL,
    seq          bigint GENERATED ALWAYS AS IDENTITY, -- grows in the order of acceptance within a shard
    frame        bytea       NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000, vacuum_truncate = false);
ALTER TABLE dispatcher.delayed ALTER COLUMN frame SET STORAGE EXTERNAL; -- its size is read without its bytes
CREATE INDEX delayed_available_at_idx ON dispatcher.delayed (available_at);
CREATE INDEX delayed_shard_id_available_at_seq_idx ON dispatcher.delayed (shard_id, available_at, seq);
