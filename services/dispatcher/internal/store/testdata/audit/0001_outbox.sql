-- +goose Up
CREATE TABLE audit.outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant_id text, actor text, action text, resource text, detail jsonb);
CREATE FUNCTION audit.enqueue(tenant text, actor text, action text, resource text, detail jsonb) RETURNS void LANGUAGE sql AS
'INSERT INTO audit.outbox (tenant_id, actor, action, resource, detail) VALUES ($1, $2, $3, $4, $5)';
