CREATE SCHEMA audit;

CREATE FUNCTION audit.enqueue(tenant text, actor text, action text, resource text, detail jsonb DEFAULT '{}'::jsonb, outcome text DEFAULT 'ok'::text) RETURNS void
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
    INSERT INTO audit.outbox (tenant_id, occurred_at, actor, action, resource, outcome, detail)
    VALUES (coalesce($1, '_system'), audit.now(), $2, $3, $4, $6, $5)
$_$;

CREATE FUNCTION audit.now() RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    AS $$SELECT statement_timestamp()$$;

CREATE TABLE audit.outbox (
    id bigint NOT NULL,
    tenant_id text NOT NULL,
    occurred_at timestamp with time zone NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    resource text NOT NULL,
    outcome text NOT NULL,
    detail jsonb NOT NULL,
    CONSTRAINT outbox_action_ck CHECK (((octet_length(action) >= 1) AND (octet_length(action) <= 256))),
    CONSTRAINT outbox_actor_ck CHECK (((octet_length(actor) >= 1) AND (octet_length(actor) <= 1024))),
    CONSTRAINT outbox_detail_ck CHECK (((jsonb_typeof(detail) = 'object'::text) AND (octet_length((detail)::text) <= 65536))),
    CONSTRAINT outbox_outcome_ck CHECK ((outcome = ANY (ARRAY['ok'::text, 'refused'::text, 'failed'::text]))),
    CONSTRAINT outbox_resource_ck CHECK (((octet_length(resource) >= 1) AND (octet_length(resource) <= 4096))),
    CONSTRAINT outbox_tenant_id_ck CHECK ((tenant_id ~ '^([a-z0-9][a-z0-9_-]{0,62}|_system)$'::text))
)
WITH (autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='1000', autovacuum_vacuum_cost_delay='0');

ALTER TABLE audit.outbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME audit.outbox_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

ALTER TABLE ONLY audit.outbox
    ADD CONSTRAINT outbox_id_pk PRIMARY KEY (id);
