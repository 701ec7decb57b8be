-- +goose Up

-- Keys of encrypted queues, each wrapped by a master key that no database ever holds. Ids are in segments and dead letters, so they are never used again.
CREATE SEQUENCE dispatcher.queue_key_ids AS integer;
CREATE TABLE dispatcher.queue_keys (
    id         integer     NOT NULL CONSTRAINT queue_keys_id_pk PRIMARY KEY,
    queue_id   bigint      NOT NULL,
    purpose    text        NOT NULL CONSTRAINT queue_keys_purpose_ck CHECK (purpose IN ('names', 'data')), -- one for names, fixed; the newest for data seals
    master_id  text        NOT NULL COLLATE "C",
    wrapped    bytea       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT dispatcher.now()
);
CREATE INDEX queue_keys_queue_id_id_idx ON dispatcher.queue_keys (queue_id, id);

-- 0: in clear. Otherwise headers hold all but the payload, sealed, the payload is sealed, and the text columns are empty.
ALTER TABLE dispatcher.dead_letters ADD COLUMN key_id integer NOT NULL DEFAULT 0;
