-- The cold side's lock order continues the hot one's at its front: queue row, group row, group_shards by id, dead letters by id, shards by id, inserts.

-- name: queue_find
SELECT id, tenant_id, name, config, config_version, placement, shard_ids, created_at
FROM dispatcher.queues
WHERE tenant_id = @tenant AND name = @name AND deleted_at IS NULL;

-- name: queue_lock
-- The row's lock puts control actions on one queue in an order: configure, create group, delete.
SELECT id, tenant_id, name, config, config_version, placement, shard_ids, created_at
FROM dispatcher.queues
WHERE tenant_id = @tenant AND name = @name AND deleted_at IS NULL
FOR NO KEY UPDATE;

-- name: queue_rows
-- Deleted ones too.
SELECT id, tenant_id, name, config, config_version, placement, shard_ids, created_at
FROM dispatcher.queues
WHERE id = ANY (@ids::bigint[]);

-- name: queue_lock_id
SELECT id, tenant_id, name, config, config_version, placement, shard_ids, created_at
FROM dispatcher.queues
WHERE id = @id AND deleted_at IS NULL
FOR NO KEY UPDATE;

-- name: queue_create
-- No row comes back when the name is taken: by a committed queue, for a racer waits here until the other has committed.
WITH made AS (
    INSERT INTO dispatcher.queues (tenant_id, name, config, placement, shard_ids)
    VALUES (@tenant, @name, @config, @placement, ARRAY(SELECT nextval('dispatcher.shard_ids') FROM generate_series(1, @shards::int)))
    ON CONFLICT (tenant_id, name) WHERE deleted_at IS NULL DO NOTHING
    RETURNING id, tenant_id, name, config, config_version, placement, shard_ids, created_at
), shards AS (
    INSERT INTO dispatcher.shards (id, queue_id, config_version, lane)
    SELECT u.id, made.id, made.config_version, (u.n - 1) / @width::int FROM made, unnest(made.shard_ids) WITH ORDINALITY AS u(id, n)
), catalogued AS (
    INSERT INTO dispatcher.catalogued (shard_id, upto)
    SELECT u.id, 0 FROM made, unnest(made.shard_ids) AS u(id) WHERE made.placement = 1 -- names of encrypted queues are not listed
)
SELECT id, tenant_id, name, config, config_version, placement, shard_ids, created_at FROM made;

-- name: queue_touch
UPDATE dispatcher.queues SET config_version = config_version + 1 WHERE id = @id
RETURNING config_version;

-- name: queue_configure
UPDATE dispatcher.queues SET config = @config, config_version = config_version + 1 WHERE id = @id
RETURNING config_version;

-- name: shards_lock
SELECT id FROM dispatcher.shards WHERE id = ANY (@ids::bigint[]) ORDER BY id FOR UPDATE;

-- name: shards_configure
-- Each flush reads the version back, so no dispatcher applies an old limit after its next commit.
UPDATE dispatcher.shards SET config_version = @version WHERE id = ANY (@ids::bigint[]);

-- name: queue_group_ids
SELECT group_shard_ids FROM dispatcher.groups WHERE queue_id = @queue ORDER BY id;

-- name: group_shards_lock
SELECT id FROM dispatcher.group_shards WHERE id = ANY (@ids::bigint[]) ORDER BY id FOR UPDATE;

-- name: group_shards_leased
-- Whether a lease that has not run out is open on any of them. Read under their locks, in a statement of its own.
SELECT EXISTS (
    SELECT FROM unnest(@ids::bigint[]) AS g(id)
    CROSS JOIN LATERAL (
        SELECT FROM dispatcher.leases l
        WHERE l.key >= encode(int8send(g.id) || int8send(0), 'hex')::uuid AND l.key < encode(int8send(g.id + 1) || int8send(0), 'hex')::uuid
          AND l.expires_at > dispatcher.clock()
        LIMIT 1) AS open);

-- name: group_shards_delete
-- What fences leases and views: there is no row, so no compare-and-set can succeed any more.
WITH gone AS (
    DELETE FROM dispatcher.group_shards WHERE id = ANY (@ids::bigint[]) RETURNING id
)
INSERT INTO dispatcher.garbage (kind, id) SELECT 'group_shard', id FROM gone;

-- name: queue_delete
-- Flushes look at sealed under the shard's lock, so nothing is appended once this commits.
WITH gone AS (
    UPDATE dispatcher.queues SET deleted_at = dispatcher.clock(), config_version = config_version + 1 WHERE id = @id
    RETURNING id, config_version, shard_ids
), groups AS (
    DELETE FROM dispatcher.groups WHERE queue_id = @id
), sealed AS (
    UPDATE dispatcher.shards s SET sealed = true, config_version = gone.config_version
    FROM gone WHERE s.id = ANY (gone.shard_ids)
)
INSERT INTO dispatcher.garbage (kind, id)
SELECT 'shard', u.id FROM gone, unnest(gone.shard_ids) AS u(id)
UNION ALL
SELECT 'queue', gone.id FROM gone;

-- name: queue_list
SELECT id, tenant_id, name, config, config_version, placement, shard_ids, created_at
FROM dispatcher.queues
WHERE tenant_id = @tenant AND deleted_at IS NULL AND name > @after AND name >= @prefix AND (@prefix_end::text IS NULL OR name < @prefix_end)
ORDER BY name
LIMIT @limit;

-- name: audit
SELECT audit.enqueue(@tenant, @actor, @action, @resource, @detail);
