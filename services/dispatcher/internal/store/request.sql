-- name: request_claim
-- False: a transaction under the same key is running now. The lock ends with the transaction, whatever becomes of it.
SELECT pg_try_advisory_xact_lock(@class::int, @id::int);

-- name: request_find
-- Runs after the claim, in its own statement, so that it sees what the last holder committed. An answer that is too old counts as absent.
SELECT body_hash, answer, rest
FROM dispatcher.request_keys
WHERE tenant_id = @tenant AND method = @method AND key = @key AND created_at > dispatcher.now() - @age::interval;

-- name: request_put
INSERT INTO dispatcher.request_keys AS r (tenant_id, method, key, body_hash, answer, rest, created_at)
VALUES (@tenant, @method, @key, @body_hash, @answer, @rest, dispatcher.now())
ON CONFLICT (tenant_id, method, key) DO UPDATE
SET body_hash = excluded.body_hash, answer = excluded.answer, rest = excluded.rest, created_at = excluded.created_at;

-- name: request_trim
DELETE FROM dispatcher.request_keys
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM dispatcher.request_keys WHERE created_at <= dispatcher.now() - @age::interval LIMIT @most));

-- name: request_trim_method
-- The same for requests of one method, which are many and are remembered for less long than others.
DELETE FROM dispatcher.request_keys
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM dispatcher.request_keys WHERE created_at <= dispatcher.now() - @age::interval AND method = @method LIMIT @most));
