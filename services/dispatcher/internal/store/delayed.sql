-- Lock order: a shard's turn (an advisory lock that nobody waits for), its delayed rows by key, the shard, inserts. Whoever accepts a delayed message has
-- the shard's lock and only inserts.

-- name: delayed_put
-- Runs under the locks of the shards. seq is given in the order of the arrays.
INSERT INTO dispatcher.delayed (key, shard_id, available_at, frame, key_id)
SELECT d.key, d.shard_id, d.available_at, d.frame, d.key_id
FROM unnest(@keys::uuid[], @shards::bigint[], @available_at::timestamptz[], @frames::bytea[], @key_ids::int[])
    WITH ORDINALITY AS d(key, shard_id, available_at, frame, key_id, place)
ORDER BY d.place;

-- name: delayed_claim
-- Shards with messages that are due, of those on which nobody else works: the messages of one shard are appended by one transaction at a time, or two would
-- turn their order. since spares a walk over dead rows; it is never a condition of truth.
WITH due AS MATERIALIZED (
    SELECT d.shard_id
    FROM dispatcher.delayed d
    WHERE d.available_at >= @since AND d.available_at <= dispatcher.now()
    ORDER BY d.available_at
    LIMIT @most
), turns AS MATERIALIZED (
    SELECT DISTINCT due.shard_id FROM due
)
SELECT q.id, q.tenant_id, q.name, q.config, q.config_version, q.placement, q.shard_ids, q.created_at, t.shard_id
FROM turns t
JOIN dispatcher.shards s ON s.id = ANY (ARRAY[t.shard_id])
JOIN dispatcher.queues q ON q.id = ANY (ARRAY[s.queue_id])
WHERE pg_try_advisory_xact_lock(@class::int, hashint8(t.shard_id));

-- name: delayed_claim_except
-- The same while shards are blocked: it goes from shard to shard, because the earliest that are due may all be of those.
WITH RECURSIVE waiting AS (
    (SELECT d.shard_id FROM dispatcher.delayed d ORDER BY d.shard_id LIMIT 1)
    UNION ALL
    SELECT (SELECT d.shard_id FROM dispatcher.delayed d WHERE d.shard_id > w.shard_id ORDER BY d.shard_id LIMIT 1)
    FROM waiting w
    WHERE w.shard_id IS NOT NULL
), due AS MATERIALIZED (
    SELECT w.shard_id, x.available_at
    FROM waiting w
    CROSS JOIN LATERAL (
        SELECT d.available_at FROM dispatcher.delayed d
        WHERE d.shard_id = w.shard_id AND d.available_at >= @since AND d.available_at <= dispatcher.now()
        ORDER BY d.available_at
        LIMIT 1) AS x
    WHERE w.shard_id <> ALL (@except::bigint[])
), turns AS MATERIALIZED (
    SELECT due.shard_id FROM due ORDER BY due.available_at LIMIT @most
)
SELECT q.id, q.tenant_id, q.name, q.config, q.config_version, q.placement, q.shard_ids, q.created_at, t.shard_id
FROM turns t
JOIN dispatcher.shards s ON s.id = ANY (ARRAY[t.shard_id])
JOIN dispatcher.queues q ON q.id = ANY (ARRAY[s.queue_id])
WHERE pg_try_advisory_xact_lock(@class::int, hashint8(t.shard_id));

-- name: delayed_take
-- Takes what is due on the claimed shards, the earliest first, up to most messages a shard and bytes in all; one message is always taken. It runs after
-- the claim, so that it sees what the last holder of a turn committed. A row that is being cancelled is passed over.
WITH due AS MATERIALIZED (
    SELECT y.key
    FROM (
        SELECT x.key, sum(octet_length(x.frame)) OVER (ORDER BY x.available_at, x.seq) - octet_length(x.frame) AS before
        FROM unnest(@shards::bigint[]) AS u(id)
        CROSS JOIN LATERAL (
            SELECT d.key, d.available_at, d.seq, d.frame
            FROM dispatcher.delayed d
            WHERE d.shard_id = u.id AND d.available_at >= @since AND d.available_at <= dispatcher.now()
            ORDER BY d.available_at, d.seq
            LIMIT @most) AS x) AS y
    WHERE y.before < @bytes::bigint
), locked AS MATERIALIZED (
    SELECT d.key
    FROM due
    JOIN dispatcher.delayed d ON d.key = ANY (ARRAY[due.key])
    ORDER BY due.key
    FOR UPDATE OF d SKIP LOCKED
)
DELETE FROM dispatcher.delayed d
USING locked l
WHERE d.key = ANY (ARRAY[l.key])
RETURNING d.key, d.shard_id, d.available_at, d.seq, d.frame, d.key_id;

-- name: delayed_next
SELECT dispatcher.now(), (SELECT d.available_at FROM dispatcher.delayed d WHERE d.available_at >= @since ORDER BY d.available_at LIMIT 1);

-- name: delayed_next_except
WITH RECURSIVE waiting AS (
    (SELECT d.shard_id FROM dispatcher.delayed d ORDER BY d.shard_id LIMIT 1)
    UNION ALL
    SELECT (SELECT d.shard_id FROM dispatcher.delayed d WHERE d.shard_id > w.shard_id ORDER BY d.shard_id LIMIT 1)
    FROM waiting w
    WHERE w.shard_id IS NOT NULL
)
SELECT dispatcher.now(), (
    SELECT min(x.available_at)
    FROM waiting w
    CROSS JOIN LATERAL (
        SELECT d.available_at FROM dispatcher.delayed d
        WHERE d.shard_id = w.shard_id AND d.available_at >= @since
        ORDER BY d.available_at
        LIMIT 1) AS x
    WHERE w.shard_id <> ALL (@except::bigint[]));

-- name: pending_find
-- Where the message of a pending id is: still here (with its frame), or in the log at an offset. One statement, one moment: it is never in neither.
SELECT d.shard_id, -1::bigint AS "offset", d.available_at, d.frame, d.key_id
FROM dispatcher.delayed d
WHERE d.key = @key
UNION ALL
SELECT k.shard_id, k."offset", k.created_at, NULL, 0
FROM dispatcher.idempotency_keys k
WHERE k.key = @key AND k."offset" >= 0 AND NOT EXISTS (SELECT FROM dispatcher.delayed d WHERE d.key = @key);

-- name: delayed_cancel
DELETE FROM dispatcher.delayed d
WHERE d.key = @key AND d.shard_id = ANY (@shards::bigint[])
RETURNING d.shard_id;

-- name: garbage_delayed
DELETE FROM dispatcher.delayed WHERE key = ANY (ARRAY(SELECT key FROM dispatcher.delayed WHERE shard_id = @id LIMIT @most));
