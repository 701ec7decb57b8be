-- Lock order of a delete: the queue's row (groups are made under it), the group-shards by id, inserts.

-- name: tombstones
SELECT "offset" FROM dispatcher.tombstones WHERE shard_id = @shard AND "offset" >= @from AND "offset" < @to;

-- name: tombstone_put
INSERT INTO dispatcher.tombstones (shard_id, "offset") VALUES (@shard, @at);

-- name: pending_place
-- Where the message of a pending id is in the log; below 0 if it has no place, and what waits for its time is not here to be found.
SELECT shard_id, "offset" FROM dispatcher.idempotency_keys WHERE key = @key;

-- name: garbage_tombstones
DELETE FROM dispatcher.tombstones WHERE shard_id = @id AND "offset" = ANY (ARRAY(
    SELECT "offset" FROM dispatcher.tombstones WHERE shard_id = @id ORDER BY "offset" LIMIT @most));
