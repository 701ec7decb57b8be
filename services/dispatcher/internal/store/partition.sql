-- name: partitions_advance
-- Only who continues where the catalogue stands may write, so no message is left out and two writers cannot disagree.
UPDATE dispatcher.catalogued SET upto = @upto WHERE shard_id = @shard AND upto = @since AND upto < @upto;

-- name: partitions_upsert
-- One row a partition and lane. Nobody else writes rows of this shard: partitions_advance has the lock. No index is named, so that it runs before and after
-- the lane became a part of the key; before, a name in a second lane is not listed.
WITH seen AS (
    SELECT * FROM unnest(@names::text[], @firsts::bigint[], @lasts::bigint[], @seen::timestamptz[]) AS n(name, first_offset, last_offset, last_seen_at)
), known AS (
    UPDATE dispatcher.partitions p
    SET last_offset = greatest(p.last_offset, n.last_offset), last_seen_at = greatest(p.last_seen_at, n.last_seen_at)
    FROM seen n
    WHERE p.queue_id = @queue AND p.name = n.name AND p.shard_id = @shard
    RETURNING p.name
)
INSERT INTO dispatcher.partitions (queue_id, name, shard_id, first_offset, last_offset, last_seen_at)
SELECT @queue, n.name, @shard, n.first_offset, n.last_offset, n.last_seen_at
FROM seen n
WHERE n.name NOT IN (SELECT name FROM known)
ON CONFLICT DO NOTHING;

-- name: partitions_behind
-- Shards whose catalogue is behind their log, by id after the one given.
SELECT s.id, s.queue_id, c.upto, s.head
FROM dispatcher.catalogued c
JOIN dispatcher.shards s ON s.id = ANY (ARRAY[c.shard_id]) AND s.head > c.upto AND NOT s.sealed
WHERE c.shard_id > @after
ORDER BY c.shard_id
LIMIT @limit;

-- name: partitions_behind_of
SELECT s.id, s.queue_id, c.upto, s.head
FROM unnest(@shards::bigint[]) AS w(id)
JOIN dispatcher.catalogued c ON c.shard_id = ANY (ARRAY[w.id])
JOIN dispatcher.shards s ON s.id = ANY (ARRAY[w.id]) AND s.head > c.upto AND NOT s.sealed;

-- name: partitions_page
SELECT name, shard_id, first_offset, last_offset, last_seen_at
FROM dispatcher.partitions
WHERE queue_id = @queue AND (name, shard_id) > (@after::text, @after_shard::bigint)
ORDER BY name, shard_id
LIMIT @limit;

-- name: segments_from
-- Whole segments in order, for readers that need names, which are in the bodies only.
SELECT base_offset, count, created_at, flush_id, codec, key_id, partitions, sizes, body
FROM dispatcher.segments
WHERE shard_id = @shard AND base_offset >= @since AND base_offset < @upto
ORDER BY base_offset
LIMIT @limit;

-- name: segments_with
-- Whole segments that may hold one of several partitions, newest first. position() may match across two hashes: the reader checks.
SELECT base_offset, count, created_at, flush_id, codec, key_id, partitions, sizes, body
FROM dispatcher.segments
WHERE shard_id = @shard AND base_offset < @before AND base_offset + count > @tail
  AND EXISTS (SELECT FROM unnest(@hashes::bytea[]) AS h(hash) WHERE position(h.hash IN partitions) > 0)
ORDER BY base_offset DESC
LIMIT @limit;
