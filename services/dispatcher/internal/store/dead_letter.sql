-- Dead letters outlive their queue. A name stands for the live queue and for deleted ones that had it, as long as they have dead letters.

-- name: queue_ids_of_name
SELECT id FROM dispatcher.queues WHERE tenant_id = @tenant AND name = @name AND deleted_at IS NULL
UNION ALL
SELECT id FROM dispatcher.queues WHERE tenant_id = @tenant AND name = @name AND deleted_at IS NOT NULL;

-- name: dead_letters_page
SELECT d.id, d.queue_id, d.group_name, d.shard_id, d."offset", d.partition, d.client_id, d.content_type, d.headers, NULL::bytea,
       coalesce(octet_length(d.payload), 0), d.payload IS NULL, d.failures, d.reason, d.last_error, d.failed_at, d.redriven_at, d.key_id
FROM unnest(@queues::bigint[]) AS q(id)
CROSS JOIN LATERAL (
    (SELECT l.* FROM dispatcher.dead_letters l
    WHERE l.queue_id = q.id AND l.id > @after AND l.redriven_at IS NULL
    ORDER BY l.id
    LIMIT @limit)
    UNION ALL
    (SELECT l.* FROM dispatcher.dead_letters l
    WHERE l.queue_id = q.id AND l.id > @after AND l.redriven_at IS NOT NULL
    ORDER BY l.id
    LIMIT @limit)
) AS d
ORDER BY d.id
LIMIT @limit;

-- name: dead_letters_page_open
SELECT d.id, d.queue_id, d.group_name, d.shard_id, d."offset", d.partition, d.client_id, d.content_type, d.headers, NULL::bytea,
       coalesce(octet_length(d.payload), 0), d.payload IS NULL, d.failures, d.reason, d.last_error, d.failed_at, d.redriven_at, d.key_id
FROM unnest(@queues::bigint[]) AS q(id)
CROSS JOIN LATERAL (
    SELECT l.* FROM dispatcher.dead_letters l
    WHERE l.queue_id = q.id AND l.id > @after AND l.redriven_at IS NULL
    ORDER BY l.id
    LIMIT @limit
) AS d
ORDER BY d.id
LIMIT @limit;

-- name: dead_letters_page_group
SELECT d.id, d.queue_id, d.group_name, d.shard_id, d."offset", d.partition, d.client_id, d.content_type, d.headers, NULL::bytea,
       coalesce(octet_length(d.payload), 0), d.payload IS NULL, d.failures, d.reason, d.last_error, d.failed_at, d.redriven_at, d.key_id
FROM unnest(@queues::bigint[]) AS q(id)
CROSS JOIN LATERAL (
    (SELECT l.* FROM dispatcher.dead_letters l
    WHERE (l.group_name, l.queue_id, l.id) > (@group, q.id, @after) AND l.group_name <= @group AND l.queue_id <= q.id AND l.redriven_at IS NULL
    ORDER BY l.group_name, l.queue_id, l.id
    LIMIT @limit)
    UNION ALL
    (SELECT l.* FROM dispatcher.dead_letters l
    WHERE l.queue_id = q.id AND l.id > @after AND l.redriven_at IS NOT NULL AND l.group_name = @group
    ORDER BY l.id
    LIMIT @limit)
) AS d
ORDER BY d.id
LIMIT @limit;

-- name: dead_letters_page_group_open
-- Ranges and the order name the whole index, so no other one will do, whatever the planner believes of the group's size.
SELECT d.id, d.queue_id, d.group_name, d.shard_id, d."offset", d.partition, d.client_id, d.content_type, d.headers, NULL::bytea,
       coalesce(octet_length(d.payload), 0), d.payload IS NULL, d.failures, d.reason, d.last_error, d.failed_at, d.redriven_at, d.key_id
FROM unnest(@queues::bigint[]) AS q(id)
CROSS JOIN LATERAL (
    SELECT l.* FROM dispatcher.dead_letters l
    WHERE (l.group_name, l.queue_id, l.id) > (@group, q.id, @after) AND l.group_name <= @group AND l.queue_id <= q.id AND l.redriven_at IS NULL
    ORDER BY l.group_name, l.queue_id, l.id
    LIMIT @limit
) AS d
ORDER BY d.id
LIMIT @limit;

-- name: dead_letter_get
SELECT id, queue_id, group_name, shard_id, "offset", partition, client_id, content_type, headers, payload,
       coalesce(octet_length(payload), 0), payload IS NULL, failures, reason, last_error, failed_at, redriven_at, key_id
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
-- The oldest of a group that can be redriven. Those a racer claims first are found redriven when the lock is got.
SELECT d.id
FROM unnest(@queues::bigint[]) AS q(id)
CROSS JOIN LATERAL (
    SELECT l.id FROM dispatcher.dead_letters l
    WHERE (l.group_name, l.queue_id, l.id) >= (@group, q.id, '00000000-0000-0000-0000-000000000000'::uuid) AND l.group_name <= @group AND l.queue_id <= q.id
      AND l.redriven_at IS NULL AND l.payload IS NOT NULL
    ORDER BY l.group_name, l.queue_id, l.id
    LIMIT @limit) AS d
ORDER BY d.id
LIMIT @limit;

-- name: dead_letters_read
SELECT id, queue_id, shard_id, partition, client_id, content_type, headers, payload, key_id
FROM dispatcher.dead_letters
WHERE id = ANY (@ids::uuid[])
ORDER BY id;

-- name: dead_letters_redriven
UPDATE dispatcher.dead_letters SET redriven_at = dispatcher.clock() WHERE id = ANY (@ids::uuid[]);
