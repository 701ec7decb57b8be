-- +goose Up

-- What requests with an idempotency key were answered, written in the transaction of their effect and kept for 24 h. Who runs is decided by an advisory
-- lock, so a row is never waited for. The secret of a new API key is in no answer that is kept.
CREATE TABLE ingress.request_keys (
    tenant_id  text        NOT NULL COLLATE "C",
    method     text        NOT NULL COLLATE "C", -- full name of the RPC
    key        text        NOT NULL COLLATE "C",
    body_hash  bytea       NOT NULL,             -- SHA-256; the same key with another body is an error
    answer     bytea       NOT NULL,             -- the response message
    created_at timestamptz NOT NULL,
    CONSTRAINT request_keys_tenant_id_method_key_pk PRIMARY KEY (tenant_id, method, key),
    CONSTRAINT request_keys_body_hash_ck CHECK (octet_length(body_hash) = 32)
);
CREATE INDEX request_keys_created_at_idx ON ingress.request_keys (created_at);
