-- The row is locked first, so that of two callers one changes it and one sees it changed.
WITH found AS (
    SELECT id, tenant_id, revoked_at FROM ingress.api_keys
    WHERE id = @id AND (@within = '' OR tenant_id = @within)
    FOR UPDATE
), revoked AS (
    UPDATE ingress.api_keys k SET revoked_at = ingress.now()
    FROM found WHERE k.id = found.id AND found.revoked_at IS NULL
    RETURNING k.id
)
SELECT found.tenant_id, revoked.id IS NOT NULL FROM found LEFT JOIN revoked USING (id)
