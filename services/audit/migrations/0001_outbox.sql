-- +goose Up

-- now is the database's time of a statement. Keep it a bare one-liner: a test replaces it.
CREATE FUNCTION audit.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT statement_timestamp()';

-- outbox holds what happened until it is moved into its tenant's chain. Its ids name rows and order nothing: a lower one may be committed later, so rows
-- are taken by deleting them, never by a cursor. detail is a value here; its canonical bytes are made when it is chained.
CREATE TABLE audit.outbox (
    id          bigint GENERATED ALWAYS AS IDENTITY CONSTRAINT outbox_id_pk PRIMARY KEY,
    tenant_id   text        NOT NULL CONSTRAINT outbox_tenant_id_ck CHECK (tenant_id ~ '^([a-z0-9][a-z0-9_-]{0,62}|_system)$'),
    occurred_at timestamptz NOT NULL, -- the database's time, in microseconds, of the effect's statement
    actor       text        NOT NULL CONSTRAINT outbox_actor_ck CHECK (octet_length(actor) BETWEEN 1 AND 1024),
    action      text        NOT NULL CONSTRAINT outbox_action_ck CHECK (octet_length(action) BETWEEN 1 AND 256),
    resource    text        NOT NULL CONSTRAINT outbox_resource_ck CHECK (octet_length(resource) BETWEEN 1 AND 4096),
    outcome     text        NOT NULL CONSTRAINT outbox_outcome_ck CHECK (outcome IN ('ok', 'refused', 'failed')),
    detail      jsonb       NOT NULL CONSTRAINT outbox_detail_ck CHECK (jsonb_typeof(detail) = 'object' AND octet_length(detail::text) <= 65536)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- enqueue records an action in the caller's transaction: both are committed, or neither. It is the one door into this schema for the other services: it runs
-- with the rights of its owner, sees no schema but its own names in full, and returns nothing. tenant NULL is the system's own chain. A NULL elsewhere, or a value
-- beyond the limits of the table, is an error, and undoes the action with it: what cannot be recorded does not happen.
-- +goose StatementBegin
CREATE FUNCTION audit.enqueue(
    tenant text, actor text, action text, resource text, detail jsonb DEFAULT '{}', outcome text DEFAULT 'ok'
) RETURNS void LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO audit.outbox (tenant_id, occurred_at, actor, action, resource, outcome, detail)
    VALUES (coalesce($1, '_system'), audit.now(), $2, $3, $4, $6, $5)
$$;
-- +goose StatementEnd
GRANT EXECUTE ON FUNCTION audit.enqueue(text, text, text, text, jsonb, text) TO PUBLIC;
