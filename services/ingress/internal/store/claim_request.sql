-- False: a transaction under the same key is running now. The lock ends with the transaction, whatever becomes of it.
SELECT pg_try_advisory_xact_lock(@class::int, @id::int)
