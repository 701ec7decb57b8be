-- +goose Up

-- now is the database's time of a statement: whether a key has expired is its decision. Keep it a bare one-liner: it is inlined.
CREATE FUNCTION ingress.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT statement_timestamp()';

CREATE TABLE ingress.tenants (
    id         text        NOT NULL COLLATE "C",
    created_at timestamptz NOT NULL DEFAULT ingress.now(),
    CONSTRAINT tenants_id_pk PRIMARY KEY (id),
    CONSTRAINT tenants_id_ck CHECK (id ~ '^[a-z0-9][a-z0-9_-]{0,62}$')
);

-- An API key. Of its secret only the SHA-256 is kept, which is enough for a secret of 128 random bits and more.
CREATE TABLE ingress.api_keys (
    id          text        NOT NULL COLLATE "C",
    tenant_id   text        NOT NULL COLLATE "C",
    name        text        NOT NULL,
    role        text        NOT NULL,
    secret_hash bytea       NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT ingress.now(),
    expires_at  timestamptz,
    revoked_at  timestamptz,
    CONSTRAINT api_keys_id_pk PRIMARY KEY (id),
    CONSTRAINT api_keys_tenant_id_fk FOREIGN KEY (tenant_id) REFERENCES ingress.tenants (id),
    CONSTRAINT api_keys_role_ck CHECK (role IN ('read', 'write', 'admin')),
    CONSTRAINT api_keys_secret_hash_ck CHECK (octet_length(secret_hash) = 32)
);
CREATE INDEX api_keys_tenant_id_created_at_idx ON ingress.api_keys (tenant_id, created_at);

-- The tenant of installations that never make another one.
INSERT INTO ingress.tenants (id) VALUES ('default');
