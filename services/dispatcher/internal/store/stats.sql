-- Depth is derived from state, never counted along: messages of the log minus settled bits. All of one statement is of one snapshot. A chunk row holds
-- either the unsettled offsets of its 4,096 (encoding 1, two bytes each), or a bitmap of the settled ones (2), or says that none is settled (3).

-- name: queue_stats
SELECT q.id, s.messages, s.bytes, g.groups, coalesce(g.depth, s.messages - (
           SELECT count(*) FROM dispatcher.shards s JOIN dispatcher.tombstones t ON t.shard_id = s.id AND t."offset" >= s.tail WHERE s.id = ANY (q.shard_ids))),
       (SELECT count(*) FROM dispatcher.dead_letters d WHERE d.queue_id = q.id AND d.redriven_at IS NULL),
       (SELECT count(*) FROM unnest(q.shard_ids) AS w(id) JOIN dispatcher.delayed d ON d.shard_id = ANY (ARRAY[w.id])),
       (SELECT coalesce(sum(c.subscribers), 0)::bigint FROM dispatcher.subscribers c WHERE c.queue_id = q.id AND c.expires_at > dispatcher.now()),
       g.lost
FROM unnest(@queues::bigint[]) AS u(id)
JOIN dispatcher.queues q ON q.id = ANY (ARRAY[u.id])
CROSS JOIN LATERAL (
    SELECT coalesce(sum(s.head - s.tail), 0)::bigint AS messages, coalesce(sum(s.end_bytes - s.tail_bytes), 0)::bigint AS bytes
    FROM dispatcher.shards s
    WHERE s.id = ANY (q.shard_ids)) AS s
CROSS JOIN LATERAL (
    SELECT count(*) AS groups, max(d.depth) AS depth, coalesce(sum(d.lost), 0)::bigint AS lost
    FROM dispatcher.groups gr
    CROSS JOIN LATERAL (
        SELECT sum(gs.lost)::bigint AS lost, sum(gs.unsettled_below
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

-- name: group_stats
SELECT gr.id, coalesce(sum(st.unsettled), 0)::bigint, coalesce(sum(st.lag), 0)::bigint, coalesce(sum(st.leases), 0)::bigint,
       coalesce(sum(st.retrying), 0)::bigint,
       (SELECT count(*) FROM dispatcher.dead_letters d WHERE d.queue_id = gr.queue_id AND d.group_name = gr.name AND d.redriven_at IS NULL),
       coalesce(sum(st.lost), 0)::bigint, coalesce(array_agg(st.tail ORDER BY st.place), '{}'), max(st.active_at), min(st.since), dispatcher.clock()
FROM dispatcher.groups gr
CROSS JOIN LATERAL (
    SELECT gs.lost, gs.active_at, s.tail, mine.place,
           (SELECT g.created_at FROM dispatcher.segments g
            WHERE g.shard_id = gs.shard_id AND g.base_offset <= gs.low AND gs.low < s.head ORDER BY g.base_offset DESC LIMIT 1) AS since,
           gs.unsettled_below
           + greatest(least(s.head, (gs.hot_chunk + 2) * 4096) - gs.hot_chunk * 4096, 0) - bit_count(gs.hot)
           + greatest(s.head - (gs.hot_chunk + 2) * 4096, 0) - above.settled AS unsettled,
           greatest(s.head - gs.low, 0) AS lag,
           (SELECT count(*) FROM dispatcher.leases l
            WHERE l.key >= encode(int8send(gs.id) || int8send(0), 'hex')::uuid AND l.key < encode(int8send(gs.id + 1) || int8send(0), 'hex')::uuid) AS leases,
           (SELECT count(*) FROM dispatcher.retries r
            WHERE r.key >= encode(int8send(gs.id) || int8send(0), 'hex')::uuid AND r.key < encode(int8send(gs.id + 1) || int8send(0), 'hex')::uuid
              AND r.available_at > dispatcher.now()) AS retrying
    FROM unnest(gr.group_shard_ids) WITH ORDINALITY AS mine(id, place)
    JOIN dispatcher.group_shards gs ON gs.id = ANY (ARRAY[mine.id])
    JOIN dispatcher.shards s ON s.id = ANY (ARRAY[gs.shard_id])
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(CASE c.encoding WHEN 1 THEN 4096 - octet_length(c.data) / 2 WHEN 2 THEN bit_count(c.data) ELSE 0 END), 0)::bigint AS settled
        FROM dispatcher.settled_chunks c
        WHERE c.key >= encode(int8send(gs.id) || int8send(gs.hot_chunk + 2), 'hex')::uuid
          AND c.key < encode(int8send(gs.id + 1) || int8send(0), 'hex')::uuid) AS above) AS st
WHERE gr.queue_id = @queue AND (@group::text = '' OR gr.name = @group)
GROUP BY gr.id;

-- name: group_lease_entries
SELECT gr.id, l.entries
FROM dispatcher.groups gr
CROSS JOIN LATERAL unnest(gr.group_shard_ids) AS u(id)
JOIN dispatcher.leases l
  ON l.key >= encode(int8send(u.id) || int8send(0), 'hex')::uuid AND l.key < encode(int8send(u.id + 1) || int8send(0), 'hex')::uuid
WHERE gr.queue_id = @queue AND (@group::text = '' OR gr.name = @group);

-- name: shard_stats
SELECT s.id, s.head, s.tail, CASE WHEN isfinite(s.last_at) THEN s.last_at END
FROM unnest(@shards::bigint[]) WITH ORDINALITY AS u(id, place)
JOIN dispatcher.shards s ON s.id = ANY (ARRAY[u.id])
ORDER BY u.place;
