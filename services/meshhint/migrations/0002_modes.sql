-- +goose Up
-- The modes: what operators decided for the whole fleet. A mode that was never set has no row and is off. Only database time is stored.
CREATE TABLE mesh.modes (
    name       text        NOT NULL,
    enabled    boolean     NOT NULL,
    reason     text        NOT NULL,
    changed_at timestamptz NOT NULL,
    changed_by text        NOT NULL,
    version    bigint      NOT NULL, -- grows by one with each change
    CONSTRAINT modes_name_pk PRIMARY KEY (name),
    CONSTRAINT modes_name_ck CHECK (name IN ('maintenance', 'pop_maintenance'))
);

-- modes lists every mode, also those that were never set.
-- +goose StatementBegin
CREATE FUNCTION mesh.modes()
RETURNS TABLE (name text, enabled boolean, reason text, changed_at timestamptz, changed_by text, version bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT k.name, coalesce(m.enabled, false), coalesce(m.reason, ''), m.changed_at, coalesce(m.changed_by, ''), coalesce(m.version, 0)
    FROM (VALUES ('maintenance'), ('pop_maintenance')) AS k (name)
    LEFT JOIN mesh.modes m ON m.name = k.name
    ORDER BY k.name
$$;
-- +goose StatementEnd

-- set_mode sets a mode and returns it; changed says whether it was another before. Setting what is set changes nothing. The caller audits what
-- changed in the same transaction, and hints at it after the commit.
-- +goose StatementBegin
CREATE FUNCTION mesh.set_mode(p_name text, p_enabled boolean, p_reason text, p_by text)
RETURNS TABLE (name text, enabled boolean, reason text, changed_at timestamptz, changed_by text, version bigint, changed boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
-- +goose StatementEnd

GRANT EXECUTE ON FUNCTION mesh.modes() TO PUBLIC;
GRANT EXECUTE ON FUNCTION mesh.set_mode(text, boolean, text, text) TO PUBLIC;
