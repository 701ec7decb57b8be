-- +goose Up

-- Messages that were deleted one by one. Every group has settled what is named here; a group that is made or moved later does so at once. They go with the
-- part of the log that they are about.
CREATE TABLE dispatcher.tombstones (
    shard_id bigint NOT NULL,
    "offset" bigint NOT NULL,
    CONSTRAINT tombstones_shard_id_offset_pk PRIMARY KEY (shard_id, "offset")
);
