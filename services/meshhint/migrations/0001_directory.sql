-- +goose Up
-- The node directory: one row a service process. The sidecar of a host writes its host's rows; when it is silent each service beats for itself
-- through mesh.announce. Only database time is stored and compared.
CREATE TABLE mesh.nodes (
    id           text        NOT NULL,
    host_id      text        NOT NULL,
    zone         text        NOT NULL,
    service      text        NOT NULL,
    state        text        NOT NULL,
    addresses    jsonb       NOT NULL,
    version      text        NOT NULL,
    started_at   timestamptz NOT NULL,
    heartbeat_at timestamptz NOT NULL,
    dead_after   interval    NOT NULL, -- as the node's host is configured
    CONSTRAINT nodes_id_pk PRIMARY KEY (id),
    CONSTRAINT nodes_state_ck CHECK (state IN ('joining', 'online', 'draining', 'dead'))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- +goose StatementBegin
CREATE FUNCTION mesh.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT statement_timestamp()';
-- +goose StatementEnd

-- announce writes nodes and their heartbeat: one element of p_nodes a node, with id, host_id, zone, service, state, addresses, version
-- and dead_after (seconds; absent: as before, or 5).
-- It says how many were new or changed their state or addresses, so that the caller can hint.
-- +goose StatementBegin
CREATE FUNCTION mesh.announce(p_nodes jsonb) RETURNS int
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH given AS (
        SELECT id, host_id, zone, service, state, addresses, version, make_interval(secs => dead_after) AS dead_after
        FROM jsonb_to_recordset(p_nodes)
            AS g (id text, host_id text, zone text, service text, state text, addresses jsonb, version text, dead_after float8)
        ORDER BY id
    ), before AS (
        SELECT n.id, n.state, n.addresses FROM mesh.nodes n JOIN given g USING (id)
    ), written AS (
        INSERT INTO mesh.nodes AS n (id, host_id, zone, service, state, addresses, version, started_at, heartbeat_at, dead_after)
        SELECT id, host_id, zone, service, state, addresses, version, mesh.now(), mesh.now(), coalesce(dead_after, '5 seconds') FROM given
        ON CONFLICT ON CONSTRAINT nodes_id_pk DO UPDATE
        SET host_id = excluded.host_id, zone = excluded.zone, state = excluded.state, addresses = excluded.addresses,
            version = excluded.version, heartbeat_at = excluded.heartbeat_at,
            dead_after = coalesce((SELECT g.dead_after FROM given g WHERE g.id = n.id), n.dead_after)
        RETURNING n.id, n.state, n.addresses
    )
    SELECT count(*)::int FROM written w LEFT JOIN before b ON b.id = w.id
    WHERE b.id IS NULL OR b.state <> w.state OR b.addresses <> w.addresses
$$;
-- +goose StatementEnd

-- directory lists the nodes heard of in the last hour; one that missed its heartbeats for its dead_after is dead, whatever it last said.
-- +goose StatementBegin
CREATE FUNCTION mesh.directory()
RETURNS TABLE (node_id text, host_id text, zone text, service text, state text, addresses jsonb, started_at timestamptz,
               heartbeat_at timestamptz, version text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT n.id, n.host_id, n.zone, n.service,
           CASE WHEN n.heartbeat_at < mesh.now() - n.dead_after THEN 'dead' ELSE n.state END,
           n.addresses, n.started_at, n.heartbeat_at, n.version
    FROM mesh.nodes n
    WHERE n.heartbeat_at > mesh.now() - interval '1 hour'
    ORDER BY n.id
$$;
-- +goose StatementEnd

-- Exported: for whoever may enter the schema, which deploy/postgres/roles.sql decides.
GRANT EXECUTE ON FUNCTION mesh.announce(jsonb) TO PUBLIC;
GRANT EXECUTE ON FUNCTION mesh.directory() TO PUBLIC;
