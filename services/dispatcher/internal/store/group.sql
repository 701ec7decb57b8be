-- name: group_find
SELECT id, queue_id, name, mode, on_failure, start, group_shard_ids, created_at
FROM dispatcher.groups
WHERE queue_id = @queue AND name = @name;

-- name: group_list
SELECT id, queue_id, name, mode, on_failure, start, group_shard_ids, created_at
FROM dispatcher.groups
WHERE queue_id = @queue
ORDER BY name;

-- name: group_count
SELECT count(*) FROM dispatcher.groups WHERE queue_id = @queue;

-- name: group_create
-- One statement reads the heads and makes the group with all its state, so what commits later has a higher offset than where "latest" begins.
-- @starts overrides the beginning, shard by shard, for a group that begins at a time.
WITH place AS (
    SELECT s.id AS shard_id, u.place, nextval('dispatcher.group_shard_ids') AS id,
           CASE WHEN @start = 'latest' THEN s.head WHEN @start = 'earliest' THEN s.tail
                ELSE least(greatest((@starts::bigint[])[u.place], s.tail), s.head) END AS low
    FROM unnest(@shards::bigint[]) WITH ORDINALITY AS u(id, place)
    JOIN dispatcher.shards s ON s.id = ANY (ARRAY[u.id])
), made AS (
    INSERT INTO dispatcher.groups (queue_id, name, mode, on_failure, start, group_shard_ids)
    SELECT @queue, @name, @mode, @on_failure, @start, array_agg(id ORDER BY place) FROM place
    RETURNING id, queue_id, name, mode, on_failure, start, group_shard_ids, created_at
), states AS (
    INSERT INTO dispatcher.group_shards (id, group_id, shard_id, hot_chunk, hot, low)
    SELECT p.id, made.id, p.shard_id, p.low / 4096, 
           -- the bits of the chunk below the beginning are set: bit i of byte i/8, low bit first
           decode(repeat('ff', (p.low % 4096 / 8)::int) || lpad(to_hex((1 << (p.low % 8)::int) - 1), 2, '0')
                  || repeat('00', 1023 - (p.low % 4096 / 8)::int), 'hex'),
           p.low
    FROM place p, made
)
SELECT id, queue_id, name, mode, on_failure, start, group_shard_ids, created_at FROM made;

-- name: group_delete
DELETE FROM dispatcher.groups WHERE id = @id;

-- name: shard_bounds
SELECT s.id, s.tail, s.head
FROM unnest(@shards::bigint[]) WITH ORDINALITY AS u(id, place)
JOIN dispatcher.shards s ON s.id = ANY (ARRAY[u.id])
ORDER BY u.place;

-- name: segment_at
-- The segment that holds an offset, or the nearest below it.
SELECT base_offset, count, created_at
FROM dispatcher.segments
WHERE shard_id = @shard AND base_offset <= @at
ORDER BY base_offset DESC
LIMIT 1;

-- name: time_is_far_ahead
SELECT @at > dispatcher.clock() + interval '1 minute';
