-- +goose Up

-- What became of the messages of queues with the option trace, for a day. Only added to and deleted from. place is the shard and a page of 256 offsets; the
-- last page stands for all of the shard. events is opaque but for trimming, which writes which offsets it took and when they were pushed.
CREATE TABLE dispatcher.trace_events (
    place        uuid        NOT NULL,
    id           bigint      NOT NULL GENERATED ALWAYS AS IDENTITY,
    at           timestamptz NOT NULL,
    group_name   text        NOT NULL DEFAULT '' COLLATE "C", -- empty: of no group
    events       bytea       NOT NULL DEFAULT '\x',
    trimmed_from bigint,
    trimmed_to   bigint,
    pushed_at    timestamptz,
    CONSTRAINT trace_events_place_id_pk PRIMARY KEY (place, id)
) WITH (vacuum_truncate = off);
CREATE INDEX trace_events_at_idx ON dispatcher.trace_events USING brin (at) WITH (autosummarize = on);
