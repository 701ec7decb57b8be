SELECT id, tenant_id, name, role, secret_hash, created_at, expires_at, revoked_at, expires_at - ingress.now()
FROM ingress.api_keys
WHERE id = @id
