-- name: subscribers_put
-- All that a dispatcher serves: what is not named is served no more.
WITH gone AS (
    DELETE FROM dispatcher.subscribers WHERE node_id = @node AND queue_id <> ALL (@queues::bigint[])
)
INSERT INTO dispatcher.subscribers (queue_id, node_id, subscribers, expires_at)
SELECT u.queue_id, @node, u.subscribers, dispatcher.clock() + @ttl::interval
FROM unnest(@queues::bigint[], @counts::bigint[]) AS u(queue_id, subscribers)
ON CONFLICT (queue_id, node_id) DO UPDATE SET subscribers = excluded.subscribers, expires_at = excluded.expires_at;

-- name: subscribers_expire
DELETE FROM dispatcher.subscribers WHERE expires_at < dispatcher.now();
