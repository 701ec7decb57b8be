SELECT count(*) AS entries,
       coalesce(extract(epoch FROM audit.now() - min(occurred_at)), 0)::float8 AS oldest_seconds
FROM audit.outbox
