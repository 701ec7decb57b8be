-- name: directories
-- Begins with the segment that holds the first offset wanted, or, if that was trimmed, with the next one. Offsets are dense, so a bound on
-- messages is a bound on offsets.
WITH first AS MATERIALIZED (
    SELECT coalesce(
        (SELECT base_offset FROM dispatcher.segments
            WHERE shard_id = @shard AND base_offset <= @from ORDER BY base_offset DESC LIMIT 1),
        (SELECT base_offset FROM dispatcher.segments
            WHERE shard_id = @shard AND base_offset > @from AND base_offset < @to ORDER BY base_offset LIMIT 1)) AS base_offset
)
SELECT base_offset, count, created_at, partitions, sizes
FROM dispatcher.segments
WHERE shard_id = @shard AND base_offset >= (SELECT base_offset FROM first)
  AND base_offset < least(@to, greatest(@from, (SELECT base_offset FROM first)) + @most::bigint)
ORDER BY base_offset;

-- name: search_partition
-- The position is looked at by bytes; that it is a multiple of eight is checked by who reads.
SELECT base_offset, count, created_at, partitions, sizes
FROM dispatcher.segments
WHERE shard_id = @shard
  AND base_offset >= coalesce((SELECT base_offset FROM dispatcher.segments
        WHERE shard_id = @shard AND base_offset <= @from ORDER BY base_offset DESC LIMIT 1), @from)
  AND base_offset < @to
  AND position(@hash::bytea IN partitions) > 0
ORDER BY base_offset
LIMIT @most;

-- name: bodies
-- LIMIT keeps each look-up whole: merged with the list, it would be a walk over the shard.
SELECT s.base_offset, s.count, s.created_at, s.flush_id, s.codec, s.key_id, s.partitions, s.sizes, s.body
FROM unnest(@bases::bigint[]) AS r(base_offset)
CROSS JOIN LATERAL (
    SELECT * FROM dispatcher.segments WHERE shard_id = @shard AND base_offset = r.base_offset LIMIT 1
) s;

-- name: segment_holding
-- The whole segment that holds an offset, if there is one and its message is kept and was not deleted: else the one before it, or none.
SELECT s.base_offset, s.count, s.created_at, s.flush_id, s.codec, s.key_id, s.partitions, s.sizes, s.body
FROM dispatcher.shards h
CROSS JOIN LATERAL (
    SELECT * FROM dispatcher.segments WHERE shard_id = @shard AND base_offset <= @at ORDER BY base_offset DESC LIMIT 1) AS s
WHERE h.id = @shard AND h.tail <= @at
  AND NOT EXISTS (SELECT FROM dispatcher.tombstones t WHERE t.shard_id = @shard AND t."offset" = @at);
