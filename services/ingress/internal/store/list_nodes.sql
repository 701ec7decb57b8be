SELECT node_id, host_id, zone, service, state, addresses, started_at, heartbeat_at, version FROM mesh.directory()
