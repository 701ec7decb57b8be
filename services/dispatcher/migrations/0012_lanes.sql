-- +goose Up

-- A key that is used in two lanes is two partitions: the catalogue has a row for each.
ALTER TABLE dispatcher.partitions DROP CONSTRAINT partitions_queue_id_name_pk;
ALTER TABLE dispatcher.partitions ADD CONSTRAINT partitions_queue_id_name_shard_id_pk PRIMARY KEY (queue_id, name, shard_id);
