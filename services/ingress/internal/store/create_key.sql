INSERT INTO ingress.api_keys (id, tenant_id, name, role, secret_hash, expires_at)
VALUES (@id, @tenant, @name, @role, @hash, @expires_at)
RETURNING id, tenant_id, name, role, secret_hash, created_at, expires_at, revoked_at, expires_at - ingress.now()
