INSERT INTO ingress.tenants (id) VALUES (@id) RETURNING created_at
