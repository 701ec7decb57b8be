-- name: poll
-- What moved, of many shards and group-shards at once. The numbers known spare a walk over old versions of the rows.
SELECT false AS work, s.id, s.head AS number, s.config_version
FROM unnest(@shards::bigint[], @heads::bigint[]) AS r(id, known)
JOIN dispatcher.shards s ON s.id = ANY (ARRAY[r.id]) AND s.head >= r.known
UNION ALL
SELECT true, g.id, g.version, 0
FROM unnest(@group_shards::bigint[], @versions::bigint[]) AS r(id, known)
JOIN dispatcher.group_shards g ON g.id = ANY (ARRAY[r.id]) AND g.version >= r.known;

-- name: poll_all
-- The same by walking the tables once, which is cheaper where most rows are asked for.
SELECT false AS work, s.id, s.head AS number, s.config_version FROM dispatcher.shards s
UNION ALL
SELECT true, g.id, g.version, 0 FROM dispatcher.group_shards g;

-- name: expired_leases
-- Group-shards with leases that ran out, the longest overdue first, and how far was looked: at ten thousand overdue leases at most. One row is without a
-- group-shard if there is none to report, since leases of deleted groups stay until they are purged. Without the lower bound this would walk every lease
-- that ever ran while a foreign snapshot keeps the dead ones.
WITH due AS MATERIALIZED (
    SELECT key, expires_at FROM dispatcher.leases
    WHERE expires_at > @since::timestamptz AND expires_at <= dispatcher.now()
    ORDER BY expires_at
    LIMIT 10000
), seen AS MATERIALIZED (
    SELECT count(*) >= 10000 AS is_full, coalesce(max(expires_at), @since::timestamptz) AS upto FROM due
)
SELECT coalesce(x.id, 0), coalesce(x.group_id, 0), coalesce(x.shard_id, 0), coalesce(x.leases, 0), coalesce(x.since, seen.upto),
    seen.is_full, seen.upto, dispatcher.now()
FROM seen
LEFT JOIN LATERAL (
    SELECT e.id, g.group_id, g.shard_id, e.leases, e.since
    FROM (
        SELECT ('x' || substr(l.key::text, 1, 8) || substr(l.key::text, 10, 4) || substr(l.key::text, 15, 4))::bit(64)::bigint AS id,
            min(l.expires_at) AS since, count(*) AS leases
        FROM due l
        GROUP BY 1
    ) e
    JOIN LATERAL (
        SELECT g.group_id, g.shard_id FROM dispatcher.group_shards g WHERE g.id = e.id AND g.version >= 0 ORDER BY g.version DESC LIMIT 1
    ) g ON true
) x ON true
ORDER BY x.since
LIMIT @most;
