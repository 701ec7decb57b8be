CREATE SCHEMA ingress;

CREATE FUNCTION ingress.now() RETURNS timestamp with time zone
    LANGUAGE sql STABLE
    AS $$SELECT statement_timestamp()$$;

CREATE TABLE ingress.api_keys (
    id text NOT NULL COLLATE pg_catalog."C",
    tenant_id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL,
    role text NOT NULL,
    secret_hash bytea NOT NULL,
    created_at timestamp with time zone DEFAULT ingress.now() NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    CONSTRAINT api_keys_role_ck CHECK ((role = ANY (ARRAY['read'::text, 'write'::text, 'admin'::text]))),
    CONSTRAINT api_keys_secret_hash_ck CHECK ((octet_length(secret_hash) = 32))
);

CREATE TABLE ingress.request_keys (
    tenant_id text NOT NULL COLLATE pg_catalog."C",
    method text NOT NULL COLLATE pg_catalog."C",
    key text NOT NULL COLLATE pg_catalog."C",
    body_hash bytea NOT NULL,
    answer bytea NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT request_keys_body_hash_ck CHECK ((octet_length(body_hash) = 32))
);

CREATE TABLE ingress.tenants (
    id text NOT NULL COLLATE pg_catalog."C",
    created_at timestamp with time zone DEFAULT ingress.now() NOT NULL,
    CONSTRAINT tenants_id_ck CHECK ((id ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text))
);

ALTER TABLE ONLY ingress.api_keys
    ADD CONSTRAINT api_keys_id_pk PRIMARY KEY (id);

ALTER TABLE ONLY ingress.request_keys
    ADD CONSTRAINT request_keys_tenant_id_method_key_pk PRIMARY KEY (tenant_id, method, key);

ALTER TABLE ONLY ingress.tenants
    ADD CONSTRAINT tenants_id_pk PRIMARY KEY (id);

CREATE INDEX api_keys_tenant_id_created_at_idx ON ingress.api_keys USING btree (tenant_id, created_at);

CREATE INDEX request_keys_created_at_idx ON ingress.request_keys USING btree (created_at);

ALTER TABLE ONLY ingress.api_keys
    ADD CONSTRAINT api_keys_tenant_id_fk FOREIGN KEY (tenant_id) REFERENCES ingress.tenants(id);
