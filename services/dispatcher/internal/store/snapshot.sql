-- name: group_shard
-- The newest version stands at the end of the id's range, so old versions kept by a foreign snapshot are not walked.
SELECT id, version, group_id, shard_id, hot_chunk, hot, low, unsettled_below, lease_low, chunks_version, retries_version, sought_version,
    lost, untold, kept_from, dispatcher.clock()
FROM dispatcher.group_shards
WHERE id = @id AND version >= @known
ORDER BY version DESC
LIMIT 1;

-- name: lock_group_shard
-- Only locks; the other tables are read by later statements, which see what was committed before the lock was got.
SELECT id, version, group_id, shard_id, hot_chunk, hot, low, unsettled_below, lease_low, chunks_version, retries_version, sought_version,
    lost, untold, kept_from, dispatcher.clock()
FROM dispatcher.group_shards
WHERE id = @id AND version >= @known
ORDER BY version DESC
LIMIT 1
FOR UPDATE;

-- name: chunks
SELECT key, encoding, data FROM dispatcher.settled_chunks WHERE key >= @first AND key <= @last ORDER BY key;

-- name: leases
SELECT key, expires_at, holder, entries FROM dispatcher.leases WHERE key >= @first AND key <= @last ORDER BY key;

-- name: probe_leases
SELECT key, expires_at, holder, entries FROM dispatcher.leases WHERE key = ANY (@keys::uuid[]) ORDER BY key;

-- name: retries
SELECT key, partition_hash, failures, deliveries, available_at, alone_through, last_error
FROM dispatcher.retries
WHERE key >= @first AND key <= @last
ORDER BY key;
