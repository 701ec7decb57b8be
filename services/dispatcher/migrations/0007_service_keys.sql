-- +goose Up

-- What our own services asked to be done once: a record of a dispatcher's spool. Written in the transaction of its effect and deleted when the owner has
-- noted the result, so it outlives every queue's window for idempotency keys.
CREATE TABLE dispatcher.service_keys (
    key        uuid        NOT NULL CONSTRAINT service_keys_key_pk PRIMARY KEY, -- owner, 8 bytes | number of the owner's own, 8 bytes
    created_at timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 10000, vacuum_truncate = false);

-- A message that was accepted into the spool and refused by the queue afterwards: it has no place in the log ("offset" is -1) and no group.
ALTER TABLE dispatcher.dead_letters DROP CONSTRAINT dead_letters_reason_ck;
ALTER TABLE dispatcher.dead_letters ADD CONSTRAINT dead_letters_reason_ck CHECK (reason IN ('attempts', 'expired', 'rejected', 'trimmed', 'refused'));
