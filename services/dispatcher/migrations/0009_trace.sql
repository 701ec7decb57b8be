-- +goose Up

-- What became of one message: its dead letters are found by its place.
CREATE INDEX dead_letters_shard_id_offset_idx ON dispatcher.dead_letters (shard_id, "offset");
