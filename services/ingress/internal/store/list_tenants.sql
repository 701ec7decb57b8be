SELECT id, created_at FROM ingress.tenants ORDER BY id
