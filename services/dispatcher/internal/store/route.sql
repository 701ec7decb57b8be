-- name: route_facts
-- A host has consumers while a dispatcher of it that is online has written that it serves some.
WITH online AS MATERIALIZED (
    SELECT d.node_id, d.host_id FROM mesh.directory() d WHERE d.service = 'dispatcher' AND d.state = 'online'
)
SELECT u.queue_id, coalesce(r.node_id, ''), coalesce(r.epoch, 0), coalesce(o.host_id, ''),
       EXISTS (SELECT FROM dispatcher.subscribers s JOIN online c ON c.node_id = s.node_id::text
               WHERE s.queue_id = u.queue_id AND s.expires_at > dispatcher.now() AND c.host_id = o.host_id)
FROM unnest(@queues::bigint[]) AS u(queue_id)
LEFT JOIN dispatcher.routes r ON r.queue_id = u.queue_id
LEFT JOIN online o ON o.node_id = r.node_id;

-- name: route_claim
-- By id, so that two that claim the same queues wait for each other in one order. A deleted queue gets no route any more.
WITH won AS (
    INSERT INTO dispatcher.routes AS r (queue_id, node_id, epoch, claimed_at)
    SELECT q.id, @node, u.epoch, dispatcher.now()
    FROM unnest(@queues::bigint[], @epochs::bigint[]) AS u(queue_id, epoch)
    JOIN dispatcher.queues q ON q.id = u.queue_id AND q.deleted_at IS NULL
    ORDER BY q.id
    ON CONFLICT (queue_id) DO UPDATE SET node_id = excluded.node_id, epoch = excluded.epoch, claimed_at = excluded.claimed_at
    WHERE r.epoch = excluded.epoch - 1
    RETURNING r.queue_id
)
SELECT q.tenant_id, q.name FROM won JOIN dispatcher.queues q ON q.id = won.queue_id;

-- name: route_find
SELECT q.name, d.addresses ->> 'internal'
FROM dispatcher.queues q
JOIN dispatcher.routes r ON r.queue_id = q.id
JOIN mesh.directory() d ON d.node_id = r.node_id AND d.service = 'dispatcher' AND d.state = 'online'
WHERE q.tenant_id = @tenant AND q.name = ANY (@names::text[]) AND q.deleted_at IS NULL AND d.addresses ->> 'internal' <> '';

-- name: route_get
SELECT r.node_id, coalesce(d.host_id, ''), r.epoch, r.claimed_at
FROM dispatcher.routes r
LEFT JOIN mesh.directory() d ON d.node_id = r.node_id AND d.service = 'dispatcher' AND d.state = 'online'
WHERE r.queue_id = @queue;
