-- name: now
SELECT dispatcher.clock();

-- name: end_lost
-- Ends sessions by process id if they are this process's own, and waits a moment until they are gone.
SELECT count(pg_terminate_backend(a.pid, 2000))
FROM unnest(@pids::int[]) AS l(pid)
JOIN pg_stat_activity a ON a.pid = l.pid
WHERE a.application_name = current_setting('application_name') AND a.pid <> pg_backend_pid();

-- name: lost_left
-- A session leaves this view after its transaction has ended, so one that is not here does nothing any more.
SELECT count(*)
FROM unnest(@pids::int[]) AS l(pid)
JOIN pg_stat_activity a ON a.pid = l.pid
WHERE a.application_name = current_setting('application_name') AND a.pid <> pg_backend_pid();

-- name: end_idle_holders
-- Ends sessions of dispatchers that hold locks (they have a transaction id) and have been waiting for their own client for a second.
SELECT count(pg_terminate_backend(a.pid, 1000))
FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.usename = session_user
  AND a.application_name LIKE 'postrider-dispatcher/%' AND a.pid <> pg_backend_pid()
  AND a.backend_xid IS NOT NULL AND a.wait_event_type = 'Client'
  AND a.state_change < clock_timestamp() - interval '1 second';

-- name: writable
SELECT current_setting('transaction_read_only') = 'off';
