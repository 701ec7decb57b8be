-- Purging dead letters. Lock order: dead letters by id, then the garbage of deleted queues by id.

-- name: dead_letters_to_purge
-- The oldest of all groups, and where redriven says so those that were redriven as well. A racer's are gone when the lock is got.
SELECT d.id
FROM unnest(@queues::bigint[]) AS q(id)
CROSS JOIN LATERAL (
    (SELECT l.id FROM dispatcher.dead_letters l
    WHERE l.queue_id = q.id AND l.redriven_at IS NULL AND l.failed_at < coalesce(@before::timestamptz, 'infinity')
    ORDER BY l.id
    LIMIT @limit)
    UNION ALL
    (SELECT l.id FROM dispatcher.dead_letters l
    WHERE l.queue_id = q.id AND l.redriven_at IS NOT NULL AND l.failed_at < coalesce(@before::timestamptz, 'infinity') AND @redriven::boolean
    ORDER BY l.id
    LIMIT @limit)
) AS d
ORDER BY d.id
LIMIT @limit;

-- name: dead_letters_to_purge_of_group
SELECT d.id
FROM unnest(@queues::bigint[]) AS q(id)
CROSS JOIN LATERAL (
    (SELECT l.id FROM dispatcher.dead_letters l
    WHERE (l.group_name, l.queue_id, l.id) >= (@group, q.id, '00000000-0000-0000-0000-000000000000'::uuid) AND l.group_name <= @group AND l.queue_id <= q.id
      AND l.redriven_at IS NULL AND l.failed_at < coalesce(@before::timestamptz, 'infinity')
    ORDER BY l.group_name, l.queue_id, l.id
    LIMIT @limit)
    UNION ALL
    (SELECT l.id FROM dispatcher.dead_letters l
    WHERE l.queue_id = q.id AND l.redriven_at IS NOT NULL AND l.group_name = @group AND l.failed_at < coalesce(@before::timestamptz, 'infinity') AND @redriven::boolean
    ORDER BY l.id
    LIMIT @limit)
) AS d
ORDER BY d.id
LIMIT @limit;

-- name: dead_letters_purge
DELETE FROM dispatcher.dead_letters WHERE id = ANY (@ids::uuid[]);

-- name: dead_letters_of_deleted
-- A deleted queue's row, and its keys, stay while dead letters need them: whoever purged some has the row looked at again. Where the mark is there already
-- its row is locked, so that nobody looks before this transaction is committed.
INSERT INTO dispatcher.garbage (kind, id)
SELECT 'queue', q.id FROM dispatcher.queues q WHERE q.id = ANY (@queues::bigint[]) AND q.deleted_at IS NOT NULL
ORDER BY q.id
ON CONFLICT (kind, id) DO UPDATE SET page = 0;
