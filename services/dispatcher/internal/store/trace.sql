-- name: trace_dead_letters
-- The newest dead letter that each group made of one message.
SELECT DISTINCT ON (group_id) group_id, id, reason, last_error
FROM dispatcher.dead_letters
WHERE shard_id = @shard AND "offset" = @at
ORDER BY group_id, id DESC;
