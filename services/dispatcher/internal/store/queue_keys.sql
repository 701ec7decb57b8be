-- Keys of encrypted queues. They go with the queue's row: with them, all that is left of it anywhere.

-- name: queue_key_ids
SELECT nextval('dispatcher.queue_key_ids')::int FROM generate_series(1, @count::int);

-- name: queue_key_put
INSERT INTO dispatcher.queue_keys (id, queue_id, purpose, master_id, wrapped) VALUES (@id, @queue, @purpose, @master, @wrapped);

-- name: queue_keys_in_use
-- The names key and the newest data key.
SELECT id, queue_id, purpose, master_id, wrapped FROM dispatcher.queue_keys
WHERE queue_id = @queue AND (purpose = 'names' OR id = (SELECT max(id) FROM dispatcher.queue_keys WHERE queue_id = @queue AND purpose = 'data'))
ORDER BY id;

-- name: queue_keys_by_id
SELECT id, queue_id, purpose, master_id, wrapped FROM dispatcher.queue_keys WHERE id = ANY (@ids::int[]);
