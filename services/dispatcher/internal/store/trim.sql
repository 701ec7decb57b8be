-- Trimming needs no leader: the shard's row lock and its tail decide between dispatchers. It takes no lock but that one.

-- name: trim_queues
SELECT id, tenant_id, name, config, config_version, placement, shard_ids, created_at
FROM dispatcher.queues
WHERE deleted_at IS NULL AND id > @after
ORDER BY id
LIMIT @limit;

-- name: trim_shards
-- What the shards hold, and since when. The heads known spare a walk over old versions of the rows.
SELECT s.id, s.head, s.tail, s.end_bytes - s.tail_bytes, o.created_at, dispatcher.clock()
FROM unnest(@shards::bigint[], @known::bigint[]) AS r(id, known)
JOIN dispatcher.shards s ON s.id = ANY (ARRAY[r.id]) AND s.head >= r.known AND NOT s.sealed
LEFT JOIN LATERAL (
    SELECT g.created_at FROM dispatcher.segments g
    WHERE g.shard_id = s.id AND g.base_offset >= s.tail
    ORDER BY g.base_offset
    LIMIT 1) AS o ON true;

-- name: trim_groups
SELECT queue_id, id, group_shard_ids FROM dispatcher.groups WHERE queue_id = ANY (@queues::bigint[]) ORDER BY queue_id, id;

-- name: trim_group_shards
-- How far groups are. Only of those that were silent for long is read since when they have something to do.
SELECT g.id, g.version, g.low, g.active_at, o.created_at
FROM unnest(@group_shards::bigint[], @known::bigint[], @after::bigint[]) AS r(id, known, after)
JOIN dispatcher.group_shards g ON g.id = ANY (ARRAY[r.id]) AND g.version >= r.known
LEFT JOIN LATERAL (
    SELECT s.created_at FROM dispatcher.segments s
    WHERE s.shard_id = g.shard_id AND s.base_offset <= g.low AND g.active_at < dispatcher.now() - r.after * interval '1 microsecond'
    ORDER BY s.base_offset DESC
    LIMIT 1) AS o ON true;

-- name: trim
-- Segments go whole, in their order, as long as one of the rules takes the next; created_at never decreases, so each rule takes a beginning of the log.
-- Whoever else trimmed since the tail was read has changed it, and then nothing is done. Of a traced queue
-- it is noted when what goes was pushed.
WITH oldest AS MATERIALIZED (
    SELECT g.base_offset, g.upto, g.created_at, g.bytes, s.head, s.end_bytes - s.tail_bytes AS kept
    FROM dispatcher.shards s
    CROSS JOIN LATERAL (
        SELECT base_offset, base_offset + count AS upto, created_at, octet_length(body)::bigint AS bytes
        FROM dispatcher.segments
        WHERE shard_id = s.id AND base_offset >= @tail
        ORDER BY base_offset
        LIMIT @most) AS g
    WHERE s.id = @shard AND s.head >= @known
), run AS (
    SELECT o.upto, o.head, o.created_at, sum(o.bytes) OVER (ORDER BY o.base_offset) AS bytes,
           o.kept + o.bytes - sum(o.bytes) OVER (ORDER BY o.base_offset) AS kept
    FROM oldest o
), chosen AS (
    SELECT max(r.upto) AS upto, max(r.bytes)::bigint AS bytes, count(*) AS segments
    FROM run r
    WHERE (r.upto < r.head OR @newest::boolean)
      AND (r.created_at <= dispatcher.clock() - nullif(@age::bigint, 0) * interval '1 microsecond'
           OR r.kept > nullif(@bytes::bigint, 0)
           OR r.upto <= @settled)
), moved AS (
    UPDATE dispatcher.shards s
    SET tail = c.upto, tail_bytes = s.tail_bytes + c.bytes
    FROM chosen c
    WHERE s.id = @shard AND s.head >= @known AND s.tail = @tail AND c.upto > @tail AND NOT s.sealed
    RETURNING s.id, s.tail, c.bytes, c.segments
), gone AS (
    DELETE FROM dispatcher.segments WHERE shard_id = @shard AND base_offset < (SELECT m.tail FROM moved m)
    RETURNING base_offset, count, created_at
), buried AS (
    DELETE FROM dispatcher.tombstones WHERE shard_id = @shard AND "offset" < (SELECT m.tail FROM moved m)
), noted AS (
    INSERT INTO dispatcher.trace_events (place, at, trimmed_from, trimmed_to, pushed_at)
    SELECT encode(int8send(@shard::bigint) || int8send(p.page), 'hex')::uuid, dispatcher.clock(), g.base_offset, g.base_offset + g.count, g.created_at
    FROM gone g
    CROSS JOIN LATERAL generate_series(g.base_offset / 256, (g.base_offset + g.count - 1) / 256) AS p(page)
    WHERE @traced::boolean
)
SELECT m.tail, m.segments, m.bytes FROM moved m;

-- name: shard_tails
SELECT s.id, s.tail
FROM unnest(@shards::bigint[], @known::bigint[]) AS r(id, known)
JOIN dispatcher.shards s ON s.id = ANY (ARRAY[r.id]) AND s.head >= r.known;

-- name: trim_partitions
-- The catalogue forgets names of which nothing is left, a page of it at a time. What is entered behind its back is below the tail too, and goes next time.
WITH page AS MATERIALIZED (
    SELECT name, shard_id, last_offset FROM dispatcher.partitions
    WHERE queue_id = @queue AND name > @after
    ORDER BY name
    LIMIT @most
), gone AS (
    DELETE FROM dispatcher.partitions p
    USING page g, unnest(@shards::bigint[], @tails::bigint[]) AS t(id, tail)
    WHERE p.queue_id = @queue AND p.name = g.name AND t.id = g.shard_id AND g.last_offset < t.tail AND p.last_offset < t.tail
)
SELECT count(*), max(name COLLATE "C") FROM page;

-- name: queue_depths
-- What is pending of queues, and the heads that this counts to, all of one moment. See queue_stats.
SELECT q.id, coalesce(g.depth, s.messages - (
           SELECT count(*) FROM dispatcher.shards s JOIN dispatcher.tombstones t ON t.shard_id = s.id AND t."offset" >= s.tail WHERE s.id = ANY (q.shard_ids))), s.ids, s.heads
FROM unnest(@queues::bigint[]) AS u(id)
JOIN dispatcher.queues q ON q.id = ANY (ARRAY[u.id])
CROSS JOIN LATERAL (
    SELECT coalesce(sum(s.head - s.tail), 0)::bigint AS messages, array_agg(s.id) AS ids, array_agg(s.head) AS heads
    FROM dispatcher.shards s
    WHERE s.id = ANY (q.shard_ids)) AS s
CROSS JOIN LATERAL (
    SELECT max(d.depth) AS depth
    FROM dispatcher.groups gr
    CROSS JOIN LATERAL (
        SELECT sum(gs.unsettled_below
                   + greatest(least(s.head, (gs.hot_chunk + 2) * 4096) - gs.hot_chunk * 4096, 0) - bit_count(gs.hot)
                   + greatest(s.head - (gs.hot_chunk + 2) * 4096, 0) - above.settled)::bigint AS depth
        FROM dispatcher.group_shards gs
        JOIN dispatcher.shards s ON s.id = ANY (ARRAY[gs.shard_id])
        CROSS JOIN LATERAL (
            SELECT coalesce(sum(CASE c.encoding WHEN 1 THEN 4096 - octet_length(c.data) / 2 WHEN 2 THEN bit_count(c.data) ELSE 0 END), 0)::bigint AS settled
            FROM dispatcher.settled_chunks c
            WHERE c.key >= encode(int8send(gs.id) || int8send(gs.hot_chunk + 2), 'hex')::uuid
              AND c.key < encode(int8send(gs.id + 1) || int8send(0), 'hex')::uuid) AS above
        WHERE gs.id = ANY (gr.group_shard_ids)) AS d
    WHERE gr.queue_id = q.id) AS g;
