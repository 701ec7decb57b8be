DELETE FROM mesh.nodes WHERE heartbeat_at < mesh.now() - interval '1 hour'
