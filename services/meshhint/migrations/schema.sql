CREATE SCHEMA mesh;

CREATE FUNCTION mesh.announce(p_nodes jsonb) RETURNS integer
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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

CREATE FUNCTION mesh.directory() RETURNS TABLE(node_id text, host_id text, zone text, service text, state text, addresses jsonb, started_at timestamp with time zone, heartbeat_at timestamp with time zone, version text)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT n.id, n.host_id, n.zone, n.service,
           CASE WHEN n.heartbeat_at < mesh.now() - n.dead_after THEN 'dead' ELSE n.state END,
           n.addresses, n.started_at, n.heartbeat_at, n.version
    FROM mesh.nodes n
    WHERE n.heartbeat_at > mesh.now() - interval '1 hour'
    ORDER BY n.id
$$;

CREATE FUNCTION mesh.modes() RETURNS TABLE(name text, enabled boolean, reason text, changed_at timestamp with time zone, changed_by text, version bigint)
    LANGUAGE sql STABLE SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT k.name, coalesce(m.enabled, false), coalesce(m.reason, ''), m.changed_at, coalesce(m.changed_by, ''), coalesce(m.version, 0)
    FROM (VALUES ('maintenance'), ('pop_maintenance')) AS k (name)
    LEFT JOIN mesh.modes m ON m.name = k.name
    ORDER BY k.name
$$;

CREATE FUNCTION mesh.now() RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    AS $$SELECT statement_timestamp()$$;

CREATE FUNCTION mesh.set_mode(p_name text, p_enabled boolean, p_reason text, p_by text) RETURNS TABLE(name text, enabled boolean, reason text, changed_at timestamp with time zone, changed_by text, version bigint, changed boolean)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    did boolean;
BEGIN
    INSERT INTO mesh.modes AS m (name, enabled, reason, changed_at, changed_by, version)
    VALUES (p_name, p_enabled, p_reason, mesh.now(), p_by, 1)
    ON CONFLICT ON CONSTRAINT modes_name_pk DO UPDATE
    SET enabled = excluded.enabled, reason = excluded.reason, changed_at = excluded.changed_at, changed_by = excluded.changed_by,
        version = m.version + 1
    WHERE (m.enabled, m.reason) IS DISTINCT FROM (excluded.enabled, excluded.reason);
    did := FOUND;
    -- A statement of its own: who waited for another's change sees it here.
    RETURN QUERY SELECT m.name, m.enabled, m.reason, m.changed_at, m.changed_by, m.version, did FROM mesh.modes m WHERE m.name = p_name;
END
$$;

CREATE TABLE mesh.modes (
    name text NOT NULL,
    enabled boolean NOT NULL,
    reason text NOT NULL,
    changed_at timestamp with time zone NOT NULL,
    changed_by text NOT NULL,
    version bigint NOT NULL,
    CONSTRAINT modes_name_ck CHECK ((name = ANY (ARRAY['maintenance'::text, 'pop_maintenance'::text])))
);

CREATE TABLE mesh.nodes (
    id text NOT NULL,
    host_id text NOT NULL,
    zone text NOT NULL,
    service text NOT NULL,
    state text NOT NULL,
    addresses jsonb NOT NULL,
    version text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    heartbeat_at timestamp with time zone NOT NULL,
    dead_after interval NOT NULL,
    CONSTRAINT nodes_state_ck CHECK ((state = ANY (ARRAY['joining'::text, 'online'::text, 'draining'::text, 'dead'::text])))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000');

ALTER TABLE ONLY mesh.modes
    ADD CONSTRAINT modes_name_pk PRIMARY KEY (name);

ALTER TABLE ONLY mesh.nodes
    ADD CONSTRAINT nodes_id_pk PRIMARY KEY (id);
