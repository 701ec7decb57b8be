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

-- name: queue_keys_count
SELECT count(*) FROM dispatcher.queue_keys WHERE queue_id = @queue AND purpose = 'data';

-- name: queue_keys_to_rewrap
-- Keys that another than the first master key wraps, of the known ones; and how many are wrapped by others than the first in all.
SELECT k.id, k.queue_id, k.purpose, k.master_id, k.wrapped FROM dispatcher.queue_keys k
WHERE k.id > @after AND k.master_id <> @first AND k.master_id = ANY (@known::text[])
ORDER BY k.id
LIMIT @most;

-- name: queue_keys_of_others
SELECT k.master_id, count(*) FROM dispatcher.queue_keys k WHERE k.master_id <> @first GROUP BY k.master_id ORDER BY k.master_id;

-- name: queue_key_rewrap
-- Only what was read is replaced: whoever comes second finds it changed, and leaves it.
UPDATE dispatcher.queue_keys SET master_id = @master, wrapped = @wrapped WHERE id = @id AND master_id = @was AND wrapped = @was_wrapped;

-- name: queue_keys_by_id
SELECT id, queue_id, purpose, master_id, wrapped FROM dispatcher.queue_keys WHERE id = ANY (@ids::int[]);
