-- One window.Change is one statement: work_cas, then the parts the change has, then work_result. Nothing but the compare-and-set decides: every part
-- takes its rows from "cas", which is empty when the version is another one or the time has not come. All instants written are the one read after
-- the row's lock was got.

-- name: work_cas
cas AS (
    UPDATE dispatcher.group_shards
    SET version = @to, hot_chunk = @hot_chunk, hot = @hot, low = @low, unsettled_below = @unsettled_below, lease_low = @lease_low,
        lost = @lost, untold = @untold, kept_from = @kept_from, active_at = CASE WHEN @active::boolean THEN dispatcher.clock() ELSE active_at END,
        chunks_version = CASE WHEN @writes_chunks::boolean THEN @to ELSE chunks_version END,
        retries_version = CASE WHEN @writes_retries::boolean THEN @to ELSE retries_version END
    WHERE id = @id AND version = @from
    RETURNING group_id, shard_id, dispatcher.clock() AS at
)

-- name: work_cas_not_before
-- The clock is read once, before the row's lock is waited for, which can only make it too early. The answer tells this reading and no later one: else a
-- change that was too early by a microsecond would look like one of another version.
seen AS (SELECT dispatcher.clock() AS at),
cas AS (
    UPDATE dispatcher.group_shards
    SET version = @to, hot_chunk = @hot_chunk, hot = @hot, low = @low, unsettled_below = @unsettled_below, lease_low = @lease_low,
        lost = @lost, untold = @untold, kept_from = @kept_from, active_at = CASE WHEN @active::boolean THEN dispatcher.clock() ELSE active_at END,
        chunks_version = CASE WHEN @writes_chunks::boolean THEN @to ELSE chunks_version END,
        retries_version = CASE WHEN @writes_retries::boolean THEN @to ELSE retries_version END
    WHERE id = @id AND version = @from AND (SELECT at FROM seen) >= @not_before::timestamptz
    RETURNING group_id, shard_id, dispatcher.clock() AS at
)

-- name: work_cas_sought
cas AS (
    UPDATE dispatcher.group_shards
    SET version = @to, hot_chunk = @hot_chunk, hot = @hot, low = @low, unsettled_below = @unsettled_below, lease_low = @lease_low,
        lost = @lost, untold = @untold, kept_from = @kept_from, active_at = CASE WHEN @active::boolean THEN dispatcher.clock() ELSE active_at END,
        chunks_version = CASE WHEN @writes_chunks::boolean THEN @to ELSE chunks_version END,
        retries_version = CASE WHEN @writes_retries::boolean THEN @to ELSE retries_version END,
        sought_version = @to
    WHERE id = @id AND version = @from
    RETURNING group_id, shard_id, dispatcher.clock() AS at
)

-- name: work_reset
-- Everything of the group-shard goes but the chunk rows that the same statement writes: a row is changed once in a statement.
reset_chunks AS (
    DELETE FROM dispatcher.settled_chunks c USING cas
    WHERE c.key >= @first::uuid AND c.key <= @last::uuid AND c.key <> ALL (@kept_chunk_keys::uuid[])
), reset_leases AS (
    DELETE FROM dispatcher.leases l USING cas WHERE l.key >= @first::uuid AND l.key <= @last::uuid
), reset_retries AS (
    DELETE FROM dispatcher.retries r USING cas WHERE r.key >= @first::uuid AND r.key <= @last::uuid
)

-- name: work_chunk_upserts
chunk_upserts AS (
    INSERT INTO dispatcher.settled_chunks (key, encoding, data)
    SELECT c.key, c.encoding, c.data
    FROM cas, unnest(@chunk_keys::uuid[], @chunk_encodings::smallint[], @chunk_data::bytea[]) AS c(key, encoding, data)
    ON CONFLICT (key) DO UPDATE SET encoding = excluded.encoding, data = excluded.data
)

-- name: work_chunk_deletes
chunk_deletes AS (
    DELETE FROM dispatcher.settled_chunks c USING cas WHERE c.key = ANY (@chunk_delete_keys::uuid[])
)

-- name: work_lease_inserts
lease_inserts AS (
    INSERT INTO dispatcher.leases (key, expires_at, holder, entries)
    SELECT l.key, cas.at + l.ttl * interval '1 microsecond', l.holder, l.entries
    FROM cas, unnest(@lease_keys::uuid[], @lease_ttls::bigint[], @lease_holders::text[], @lease_entries::bytea[]) AS l(key, ttl, holder, entries)
)

-- name: work_lease_updates
lease_updates AS (
    UPDATE dispatcher.leases l
    SET entries = coalesce(u.entries, l.entries),
        expires_at = CASE WHEN u.ttl > 0 THEN greatest(l.expires_at, cas.at + u.ttl * interval '1 microsecond') ELSE l.expires_at END
    FROM cas, unnest(@update_keys::uuid[], @update_ttls::bigint[], @update_entries::bytea[]) AS u(key, ttl, entries)
    WHERE l.key = ANY (ARRAY[u.key])
)

-- name: work_lease_deletes
lease_deletes AS (
    DELETE FROM dispatcher.leases l USING cas WHERE l.key = ANY (@lease_delete_keys::uuid[])
)

-- name: work_retry_upserts
retry_upserts AS (
    INSERT INTO dispatcher.retries (key, partition_hash, failures, deliveries, available_at, alone_through, last_error)
    SELECT r.key, r.partition_hash, r.failures, r.deliveries, coalesce(r.available_at, cas.at + r.after * interval '1 microsecond'),
        r.alone_through, r.last_error
    FROM cas, unnest(@retry_keys::uuid[], @retry_hashes::bigint[], @retry_failures::int[], @retry_deliveries::int[], @retry_afters::bigint[],
        @retry_ats::timestamptz[], @retry_alone::bigint[], @retry_errors::text[])
        AS r(key, partition_hash, failures, deliveries, after, available_at, alone_through, last_error)
    ON CONFLICT (key) DO UPDATE
    SET partition_hash = excluded.partition_hash, failures = excluded.failures, deliveries = excluded.deliveries,
        available_at = excluded.available_at, alone_through = excluded.alone_through, last_error = excluded.last_error
)

-- name: work_retry_deletes
retry_deletes AS (
    DELETE FROM dispatcher.retries r USING cas WHERE r.key = ANY (@retry_delete_keys::uuid[])
)

-- name: work_dead_letters
-- A group or queue that is being deleted takes no dead letter with it: it stays without their names.
dead_letters AS (
    INSERT INTO dispatcher.dead_letters (id, tenant_id, queue_id, group_id, group_name, shard_id, "offset", partition_hash, partition, client_id,
        content_type, headers, payload, deliveries, failures, reason, last_error, failed_at, key_id)
    SELECT d.id, coalesce(q.tenant_id, ''), coalesce(q.id, 0), cas.group_id, coalesce(g.name, ''), cas.shard_id, d."offset", d.partition_hash,
        d.partition, d.client_id, d.content_type, d.headers, d.payload, d.deliveries, d.failures, d.reason, d.last_error, cas.at, d.key_id
    FROM cas
    LEFT JOIN dispatcher.groups g ON g.id = ANY (ARRAY[cas.group_id])
    LEFT JOIN dispatcher.queues q ON q.id = ANY (ARRAY[g.queue_id])
    CROSS JOIN unnest(@dead_ids::uuid[], @dead_offsets::bigint[], @dead_hashes::bigint[], @dead_partitions::text[], @dead_client_ids::text[],
        @dead_content_types::text[], @dead_headers::bytea[], @dead_payloads::bytea[], @dead_deliveries::int[], @dead_failures::int[],
        @dead_reasons::text[], @dead_errors::text[], @dead_key_ids::int[])
        AS d(id, "offset", partition_hash, partition, client_id, content_type, headers, payload, deliveries, failures, reason, last_error, key_id)
)

-- name: work_events
-- What the change did to the messages of a queue that is traced: it is committed with the change or not at all.
events AS (
    INSERT INTO dispatcher.trace_events (place, at, group_name, events)
    SELECT encode(int8send(cas.shard_id) || int8send(e.page), 'hex')::uuid, cas.at, coalesce(g.name, ''), e.events
    FROM cas
    LEFT JOIN dispatcher.groups g ON g.id = ANY (ARRAY[cas.group_id])
    CROSS JOIN unnest(@event_pages::bigint[], @event_rows::bytea[]) AS e(page, events)
)

-- name: work_result
-- One row: the instant of the change, null if it was not applied, and the clock.
SELECT cas.at, dispatcher.clock() FROM (VALUES (1)) AS one LEFT JOIN cas ON true

-- name: work_result_not_before
-- The same with the clock that the change was judged by.
SELECT cas.at, coalesce(cas.at, seen.at) FROM seen LEFT JOIN cas ON true

-- name: work_drop
-- Removes a group-shard with everything of it.
WITH cas AS (
    DELETE FROM dispatcher.group_shards WHERE id = @id AND version = @from RETURNING dispatcher.clock() AS at
), chunk_deletes AS (
    DELETE FROM dispatcher.settled_chunks c USING cas WHERE c.key >= @first::uuid AND c.key <= @last::uuid
), lease_deletes AS (
    DELETE FROM dispatcher.leases l USING cas WHERE l.key >= @first::uuid AND l.key <= @last::uuid
), retry_deletes AS (
    DELETE FROM dispatcher.retries r USING cas WHERE r.key >= @first::uuid AND r.key <= @last::uuid
)
SELECT cas.at, dispatcher.clock() FROM (VALUES (1)) AS one LEFT JOIN cas ON true;
