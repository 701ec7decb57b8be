-- name: identity
-- Which database this is: the cluster, and the timeline its log is on. Another one may hold other segments under the same offsets.
SELECT system_identifier::text || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) || '/' || current_database()
FROM pg_control_system();
