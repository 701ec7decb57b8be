DELETE FROM ingress.request_keys
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM ingress.request_keys WHERE created_at <= ingress.now() - @age::interval LIMIT @most))
