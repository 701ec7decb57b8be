-- name: peek_onward
-- A bounded number of segments, beginning with the one that holds the first offset wanted, each with whether it may hold the partition. No hash is in
-- every segment. position() may match across two hashes: the reader checks. octet_length() of a body that is stored apart does not read it.
SELECT base_offset, count, octet_length(body), position(@hash::bytea IN partitions) > 0
FROM dispatcher.segments
WHERE shard_id = @shard
  AND base_offset >= coalesce((SELECT base_offset FROM dispatcher.segments
        WHERE shard_id = @shard AND base_offset <= @from ORDER BY base_offset DESC LIMIT 1), @from)
  AND base_offset < @to
ORDER BY base_offset
LIMIT @most;

-- name: peek_back
-- The same from the end.
SELECT base_offset, count, octet_length(body), position(@hash::bytea IN partitions) > 0
FROM dispatcher.segments
WHERE shard_id = @shard
  AND base_offset >= coalesce((SELECT base_offset FROM dispatcher.segments
        WHERE shard_id = @shard AND base_offset <= @from ORDER BY base_offset DESC LIMIT 1), @from)
  AND base_offset < @to
ORDER BY base_offset DESC
LIMIT @most;
