INSERT INTO ingress.request_keys AS r (tenant_id, method, key, body_hash, answer, created_at)
VALUES (@tenant, @method, @key, @body_hash, @answer, ingress.now())
ON CONFLICT (tenant_id, method, key) DO UPDATE
SET body_hash = excluded.body_hash, answer = excluded.answer, created_at = excluded.created_at
