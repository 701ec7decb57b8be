-- name: garbage_claim
-- One piece of garbage; others work on others. A queue comes after its shards: until their catalogue is gone, names may still be entered.
SELECT g.kind, g.id, g.page
FROM dispatcher.garbage g
WHERE g.kind <> 'queue' OR NOT EXISTS (
    SELECT FROM dispatcher.queues q JOIN dispatcher.garbage s ON s.kind = 'shard' AND s.id = ANY (q.shard_ids) WHERE q.id = g.id)
ORDER BY g.kind, g.id
LIMIT 1
FOR UPDATE OF g SKIP LOCKED;

-- name: garbage_done
DELETE FROM dispatcher.garbage WHERE kind = @kind AND id = @id;

-- name: garbage_leases
DELETE FROM dispatcher.leases WHERE key = ANY (ARRAY(
    SELECT key FROM dispatcher.leases
    WHERE key >= encode(int8send(@id::bigint) || int8send(0), 'hex')::uuid AND key < encode(int8send(@id::bigint + 1) || int8send(0), 'hex')::uuid
    LIMIT @most));

-- name: garbage_retries
DELETE FROM dispatcher.retries WHERE key = ANY (ARRAY(
    SELECT key FROM dispatcher.retries
    WHERE key >= encode(int8send(@id::bigint) || int8send(0), 'hex')::uuid AND key < encode(int8send(@id::bigint + 1) || int8send(0), 'hex')::uuid
    LIMIT @most));

-- name: garbage_chunks
DELETE FROM dispatcher.settled_chunks WHERE key = ANY (ARRAY(
    SELECT key FROM dispatcher.settled_chunks
    WHERE key >= encode(int8send(@id::bigint) || int8send(0), 'hex')::uuid AND key < encode(int8send(@id::bigint + 1) || int8send(0), 'hex')::uuid
    LIMIT @most));

-- name: garbage_segments
DELETE FROM dispatcher.segments WHERE shard_id = @id AND base_offset = ANY (ARRAY(
    SELECT base_offset FROM dispatcher.segments WHERE shard_id = @id ORDER BY base_offset LIMIT @most));

-- name: garbage_key_pages
SELECT pg_relation_size('dispatcher.idempotency_keys') / current_setting('block_size')::bigint;

-- name: garbage_shards_at
-- Shards whose keys are freed up to the same page go on together, so that many deletes cost one walk over the table.
SELECT id FROM dispatcher.garbage WHERE kind = 'shard' AND page = @page ORDER BY id LIMIT 1000 FOR UPDATE SKIP LOCKED;

-- name: garbage_keys
-- Keys have no index by shard, and need none for anything else: a stretch of the table is read by place. Nothing is added for a sealed shard.
DELETE FROM dispatcher.idempotency_keys
WHERE ctid >= @first::tid AND ctid < @last::tid AND shard_id = ANY (@ids::bigint[]);

-- name: garbage_page
UPDATE dispatcher.garbage SET page = @page WHERE kind = 'shard' AND id = ANY (@ids::bigint[]);

-- name: garbage_shard
WITH catalogued AS (DELETE FROM dispatcher.catalogued WHERE shard_id = @id)
DELETE FROM dispatcher.shards WHERE id = @id;

-- name: garbage_partitions
DELETE FROM dispatcher.partitions WHERE queue_id = @id AND name = ANY (ARRAY(
    SELECT name FROM dispatcher.partitions WHERE queue_id = @id ORDER BY name LIMIT @most));

-- name: garbage_queue
-- The row itself stays while dead letters need the name. Its keys go with it: what was encrypted with them and is left in a backup opens no more.
WITH gone AS (
DELETE FROM dispatcher.queues q
WHERE q.id = @id AND q.deleted_at IS NOT NULL AND NOT EXISTS (SELECT FROM dispatcher.dead_letters d WHERE d.queue_id = q.id AND d.redriven_at IS NULL)
  AND NOT EXISTS (SELECT FROM dispatcher.dead_letters d WHERE d.queue_id = q.id AND d.redriven_at IS NOT NULL)
RETURNING q.id),
route AS (DELETE FROM dispatcher.routes r USING gone WHERE r.queue_id = gone.id)
DELETE FROM dispatcher.queue_keys k USING gone WHERE k.queue_id = gone.id;
