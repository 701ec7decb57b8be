-- name: flush
-- Appends one segment to each of several shards. All bytes have arrived before the first lock is taken; locks are taken in the order of ids, and
-- the update meets only rows this statement has locked. A shard that is gone, sealed, or whose head is below the one known is left out; so are all shards of a
-- queue of which one would hold more bytes than it may.
WITH request AS MATERIALIZED (
    SELECT *
    FROM unnest(@shards::bigint[], @known::bigint[], @counts::int[], @flush_ids::uuid[], @codecs::smallint[], @key_ids::int[],
        @partitions::bytea[], @sizes::bytea[], @bodies::bytea[], @most::bigint[])
        AS r(shard_id, known, count, flush_id, codec, key_id, partitions, sizes, body, most)
), locked AS MATERIALIZED (
    SELECT r.*, s.queue_id, s.end_bytes - s.tail_bytes + octet_length(r.body) > r.most AS is_full
    FROM request r
    JOIN dispatcher.shards s ON s.id = ANY (ARRAY[r.shard_id]) AND s.head >= r.known
    ORDER BY r.shard_id
    FOR UPDATE OF s
), moved AS (
    UPDATE dispatcher.shards s
    SET head = s.head + l.count,
        end_bytes = s.end_bytes + octet_length(l.body),
        last_at = greatest(s.last_at, dispatcher.clock())
    FROM locked l
    WHERE s.id = ANY (ARRAY[l.shard_id]) AND s.head >= l.known AND NOT s.sealed
      AND l.queue_id <> ALL (ARRAY(SELECT f.queue_id FROM locked f WHERE f.is_full))
    RETURNING s.id, s.head - l.count AS base_offset, s.last_at, s.config_version,
        l.count, l.flush_id, l.codec, l.key_id, l.partitions, l.sizes, l.body
), appended AS (
    INSERT INTO dispatcher.segments (shard_id, base_offset, count, created_at, flush_id, codec, key_id, partitions, sizes, body)
    SELECT m.id, m.base_offset, m.count, m.last_at, m.flush_id, m.codec, m.key_id, m.partitions, m.sizes, m.body
    FROM moved m
)
SELECT m.id, m.base_offset, m.last_at, m.config_version FROM moved m;

-- name: flush_one
-- The same for one shard: the update takes the lock itself.
WITH moved AS (
    UPDATE dispatcher.shards s
    SET head = s.head + @count::int,
        end_bytes = s.end_bytes + octet_length(@body::bytea),
        last_at = greatest(s.last_at, dispatcher.clock())
    WHERE s.id = @shard AND s.head >= @known AND s.end_bytes - s.tail_bytes + octet_length(@body::bytea) <= @most::bigint AND NOT s.sealed
    RETURNING s.id, s.head - @count::int AS base_offset, s.last_at, s.config_version
), appended AS (
    INSERT INTO dispatcher.segments (shard_id, base_offset, count, created_at, flush_id, codec, key_id, partitions, sizes, body)
    SELECT m.id, m.base_offset, @count::int, m.last_at, @flush_id, @codec, @key_id, @partitions, @sizes, @body::bytea
    FROM moved m
)
SELECT m.id, m.base_offset, m.last_at, m.config_version FROM moved m;

-- name: shard_states
-- What the shards' rows say now.
SELECT s.id, s.head, s.tail, s.end_bytes - s.tail_bytes, s.config_version, s.sealed, dispatcher.clock()
FROM unnest(@shards::bigint[], @known::bigint[]) AS r(shard_id, known)
JOIN dispatcher.shards s ON s.id = ANY (ARRAY[r.shard_id]) AND s.head >= r.known;

-- name: lock_shards
-- Locks shard rows in the order of their ids and says what holds once all are locked.
SELECT s.id, s.head, s.tail, s.end_bytes - s.tail_bytes, s.config_version, s.sealed, dispatcher.clock()
FROM unnest(@shards::bigint[], @known::bigint[]) AS r(shard_id, known)
JOIN dispatcher.shards s ON s.id = ANY (ARRAY[r.shard_id]) AND s.head >= r.known
ORDER BY r.shard_id
FOR UPDATE OF s;

-- name: find_flush
-- Runs after the locks were given, so that it sees what the flush committed.
SELECT s.shard_id, s.base_offset, s.count, s.created_at
FROM unnest(@shards::bigint[], @known::bigint[], @flush_ids::uuid[]) AS r(shard_id, known, flush_id)
JOIN dispatcher.segments s ON s.shard_id = ANY (ARRAY[r.shard_id]) AND s.base_offset >= r.known AND s.flush_id = r.flush_id;

-- name: find_flushes
-- The same for several flushes of one shard: which of them are in the log.
SELECT s.flush_id
FROM unnest(@shards::bigint[], @known::bigint[], @flush_ids::uuid[]) AS r(shard_id, known, flush_id)
JOIN dispatcher.segments s ON s.shard_id = ANY (ARRAY[r.shard_id]) AND s.base_offset >= r.known AND s.flush_id = r.flush_id;

-- name: find_keys
SELECT key, "offset", body_hash, answer, created_at
FROM dispatcher.idempotency_keys
WHERE key = ANY (@keys::uuid[]);

-- name: put_keys
-- Runs under the shards' locks; what it overwrites was found too old under the same locks.
INSERT INTO dispatcher.idempotency_keys AS i (key, shard_id, "offset", body_hash, answer, created_at)
SELECT k.key, k.shard_id, k."offset", k.body_hash, k.answer, dispatcher.clock()
FROM unnest(@keys::uuid[], @shards::bigint[], @offsets::bigint[], @body_hashes::bigint[], @answers::bytea[])
    AS k(key, shard_id, "offset", body_hash, answer)
ON CONFLICT (key) DO UPDATE
SET shard_id = excluded.shard_id, "offset" = excluded."offset", body_hash = excluded.body_hash, answer = excluded.answer,
    created_at = excluded.created_at;

-- name: trim_keys
-- Frees keys older than the longest window. SKIP LOCKED is not needed: a key is written under its shard's lock by one statement and never waited for.
DELETE FROM dispatcher.idempotency_keys
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM dispatcher.idempotency_keys WHERE created_at < dispatcher.now() - @age::interval LIMIT @most));

-- name: find_service_keys
SELECT key FROM dispatcher.service_keys WHERE key = ANY (@keys::uuid[]);

-- name: put_service_keys
-- A key that is there already fails the transaction: two processes, or a session that was given up, did the same work.
INSERT INTO dispatcher.service_keys (key, created_at)
SELECT k.key, dispatcher.clock() FROM unnest(@keys::uuid[]) AS k(key);

-- name: confirm_service_keys
-- The owner has noted the results of all up to the last.
DELETE FROM dispatcher.service_keys WHERE key >= @first::uuid AND key <= @last::uuid;

-- name: put_refused
INSERT INTO dispatcher.dead_letters (id, tenant_id, queue_id, group_id, group_name, shard_id, "offset", partition_hash, partition, client_id,
    content_type, headers, payload, deliveries, failures, reason, last_error, failed_at, key_id)
SELECT d.id, d.tenant_id, d.queue_id, 0, '', d.shard_id, -1, d.partition_hash, d.partition, d.client_id,
    d.content_type, d.headers, d.payload, 0, 0, 'refused', d.reason, dispatcher.clock(), d.key_id
FROM unnest(@ids::uuid[], @tenants::text[], @queues::bigint[], @shards::bigint[], @hashes::bigint[], @partitions::text[], @client_ids::text[],
    @content_types::text[], @headers::bytea[], @payloads::bytea[], @reasons::text[], @key_ids::int[])
    AS d(id, tenant_id, queue_id, shard_id, partition_hash, partition, client_id, content_type, headers, payload, reason, key_id);
