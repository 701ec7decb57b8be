-- +goose Up

-- The version that the last seek made. A view that is older knows nothing of what is unsettled again, wherever its frontier stands.
ALTER TABLE dispatcher.group_shards ADD COLUMN sought_version int8 NOT NULL DEFAULT 0;
