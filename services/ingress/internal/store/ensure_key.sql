-- The key of the configuration is what the configuration says: a changed secret replaces the old one, and a revoked key lives again.
INSERT INTO ingress.api_keys AS k (id, tenant_id, name, role, secret_hash)
VALUES (@id, @tenant, @name, @role, @hash)
ON CONFLICT ON CONSTRAINT api_keys_id_pk DO UPDATE
SET secret_hash = excluded.secret_hash, role = excluded.role, expires_at = NULL, revoked_at = NULL
WHERE k.tenant_id = excluded.tenant_id
  AND ((k.secret_hash, k.role) IS DISTINCT FROM (excluded.secret_hash, excluded.role)
       OR k.expires_at IS NOT NULL OR k.revoked_at IS NOT NULL)
