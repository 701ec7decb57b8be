-- Dead letters outlive their queue. A name stands for the live queue and for deleted ones that had it, as long as they have dead letters.

-- name: queue_ids_of_name
SELECT id FROM dispatcher.queues WHERE tenant_id = @tenant AND name = @name AND deleted_at IS NULL
UNION ALL
SELECT id FROM dispatcher.queues WHERE tenant_id = @tenant AND name = @name AND deleted_at IS NOT NULL;

-- name: dead_letters_page
SELECT d.id, d.queue_id, d.group_name, d.shard_id, d."offset", d.partition, d.client_id, d.content_type, d.headers, NULL::bytea,
       coalesce(octet_length(d.payload), 0), d.payload IS NULL, d.failures, d.reason, d.last_error, d.failed_at, d.redriven_at
FROM unnest(@queues::bigint[]) AS q(id)
CROSS JOIN LATERAL (
    SELECT l.* FROM dispatcher.dead_letters l
    WHERE l.queue_id = ANY (ARRAY[q.id]) AND l.id > @after
    ORDER BY l.id
    LIMIT @limit) AS d
ORDER BY d.id
LIMIT @limit;

-- name: dead_letters_page_open
-- One range of the index of those not redriven for each queue.
SELECT d.id, d.queue_id, d.group_name, d.shard_id, d."offset", d.partition, d.client_id, d.content_type, d.headers, NULL::bytea,
       coalesce(octet_length(d.payload), 0), d.payload IS NULL, d.failures, d.reason, d.last_error, d.failed_at, d.redriven_at
FROM unnest(@queues::bigint[]) AS q(id)
CROSS JOIN LATERAL (
    SELECT l.* FROM dispatcher.dead_letters l
    WHERE l.queue_id = q.id AND l.id > @after AND l.redriven_at IS NULL
    ORDER BY l.id
    LIMIT @limit) AS d
ORDER BY d.id
LIMIT @limit;

-- name: dead_letters_page_group
SELECT d.id, d.queue_id, d.group_name, d.shard_id, d."offset", d.partition, d.client_id, d.content_type, d.headers, NULL::bytea,
       coalesce(octet_length(d.payload), 0), d.payload IS NULL, d.failures, d.reason, d.last_error, d.failed_at, d.redriven_at
FROM unnest(@queues::bigint[]) AS q(id)
CROSS JOIN LATERAL (
    SELECT l.* FROM dispatcher.dead_letters l
    WHERE l.queue_id = q.id AND l.group_name = @group AND l.id > @after
    ORDER BY l.id
    LIMIT @limit) AS d
ORDER BY d.id
LIMIT @limit;

-- name: dead_letters_page_group_open
SELECT d.id, d.queue_id, d.group_name, d.shard_id, d."offset", d.partition, d.client_id, d.content_type, d.headers, NULL::bytea,
       coalesce(octet_length(d.payload), 0), d.payload IS NULL, d.failures, d.reason, d.last_error, d.failed_at, d.redriven_at
FROM unnest(@queues::bigint[]) AS q(id)
CROSS JOIN LATERAL (
    SELECT l.* FROM dispatcher.dead_letters l
    WHERE l.queue_id = q.id AND l.group_name = @group AND l.id > @after AND l.redriven_at IS NULL
    ORDER BY l.id
    LIMIT @limit) AS d
ORDER BY d.id
LIMIT @limit;

-- name: dead_letter_get
SELECT id, queue_id, group_name, shard_id, "offset", partition, client_id, content_type, headers, payload,
       coalesce(octet_length(payload), 0), payload IS NULL, failures, reason, last_error, failed_at, redriven_at
FROM dispatcher.dead_letters
WHERE id = @id AND queue_id = ANY (@queues::bigint[]);

-- name: dead_letters_lock
-- Claims in the order of ids. A racer waits here, and sees redriven_at when it goes on.
SELECT id, coalesce(octet_length(payload), 0), payload IS NULL, redriven_at IS NOT NULL
FROM dispatcher.dead_letters
WHERE id = ANY (@ids::uuid[]) AND queue_id = ANY (@queues::bigint[])
ORDER BY id
FOR UPDATE;

-- name: dead_letters_oldest
-- The oldest of a group that can be redriven. Those a racer claimed first are no longer open when the lock is got, and are left out.
SELECT d.id
FROM unnest(@queues::bigint[]) AS q(id)
CROSS JOIN LATERAL (
    SELECT l.id FROM dispatcher.dead_letters l
    WHERE l.queue_id = q.id AND l.group_name = @group AND l.redriven_at IS NULL AND l.payload IS NOT NULL
    ORDER BY l.id
    LIMIT @limit) AS d
ORDER BY d.id
LIMIT @limit;

-- name: dead_letters_read
SELECT id, partition, client_id, content_type, headers, payload
FROM dispatcher.dead_letters
WHERE id = ANY (@ids::uuid[])
ORDER BY id;

-- name: dead_letters_redriven
UPDATE dispatcher.dead_letters SET redriven_at = dispatcher.clock() WHERE id = ANY (@ids::uuid[]);
