-- name: trace_dead_letters
-- The newest dead letter that each group made of one message.
SELECT DISTINCT ON (group_id) group_id, id, reason, last_error
FROM dispatcher.dead_letters
WHERE shard_id = @shard AND "offset" = @at
ORDER BY group_id, id DESC;

-- name: trace_events
-- The next rows about a page of offsets or about all of their shard, in the order in which they were written.
(SELECT id, at, group_name, events, coalesce(trimmed_from, 0), coalesce(trimmed_to, 0)
FROM dispatcher.trace_events
WHERE place = @page::uuid AND id > @after
ORDER BY place, id
LIMIT @most)
UNION ALL
(SELECT id, at, group_name, events, coalesce(trimmed_from, 0), coalesce(trimmed_to, 0)
FROM dispatcher.trace_events
WHERE place = @whole::uuid AND id > @after
ORDER BY place, id
LIMIT @most)
ORDER BY id
LIMIT @most;

-- name: trace_pushed
-- When a message was pushed that the log does not hold any more.
SELECT pushed_at FROM dispatcher.trace_events
WHERE place = @page::uuid AND id > 0 AND trimmed_from <= @at AND trimmed_to > @at
LIMIT 1;

-- name: trace_put
INSERT INTO dispatcher.trace_events (place, at, group_name, events)
SELECT e.place, dispatcher.clock(), e.group_name, e.events
FROM unnest(@places::uuid[], @groups::text[], @events::bytea[]) WITH ORDINALITY AS e(place, group_name, events, n)
ORDER BY e.n;

-- name: trace_letters
SELECT shard_id, "offset", group_name
FROM dispatcher.dead_letters
WHERE id = ANY (@ids::uuid[]) AND shard_id = ANY (@shards::bigint[])
ORDER BY id;

-- name: trim_traces
DELETE FROM dispatcher.trace_events
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM dispatcher.trace_events WHERE at < dispatcher.now() - @age::interval LIMIT @most));

-- name: garbage_traces
DELETE FROM dispatcher.trace_events
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM dispatcher.trace_events
    WHERE place >= encode(int8send(@id::bigint) || int8send(0), 'hex')::uuid AND place < encode(int8send(@id::bigint + 1) || int8send(0), 'hex')::uuid
    LIMIT @most));
