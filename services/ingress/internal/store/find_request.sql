-- Runs after the claim, in its own statement, so that it sees what the last holder committed. An answer that is too old counts as absent.
SELECT body_hash, answer
FROM ingress.request_keys
WHERE tenant_id = @tenant AND method = @method AND key = @key AND created_at > ingress.now() - @age::interval
