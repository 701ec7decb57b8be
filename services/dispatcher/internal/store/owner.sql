-- name: group_of_shard
SELECT h.id, h.queue_id, h.name, h.mode, h.on_failure, h.start, h.group_shard_ids, h.created_at
FROM dispatcher.groups h
WHERE h.id = (SELECT g.group_id FROM dispatcher.group_shards g WHERE g.id = @group_shard ORDER BY g.version DESC LIMIT 1);

-- name: queue_by_id
SELECT id, tenant_id, name, config, config_version, placement, shard_ids, created_at
FROM dispatcher.queues
WHERE id = @id AND deleted_at IS NULL;
