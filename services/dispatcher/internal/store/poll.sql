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
-- Group-shards with leases that ran out, the longest overdue first. More than ten thousand overdue leases are looked at in several goes. Without the
-- lower bound this would walk every lease that ever ran while a foreign snapshot keeps the dead ones.
SELECT e.id, g.group_id, g.shard_id, e.leases, e.since, dispatcher.now()
FROM (
    SELECT ('x' || substr(l.key::text, 1, 8) || substr(l.key::text, 10, 4) || substr(l.key::text, 15, 4))::bit(64)::bigint AS id,
        min(l.expires_at) AS since, count(*) AS leases
    FROM (
        SELECT key, expires_at FROM dispatcher.leases
        WHERE expires_at > @since::timestamptz AND expires_at <= dispatcher.now()
        ORDER BY expires_at
        LIMIT 10000
    ) l
    GROUP BY 1
) e
JOIN LATERAL (
    SELECT g.group_id, g.shard_id FROM dispatcher.group_shards g WHERE g.id = e.id AND g.version >= 0 ORDER BY g.version DESC LIMIT 1
) g ON true
ORDER BY e.since
LIMIT @most;
