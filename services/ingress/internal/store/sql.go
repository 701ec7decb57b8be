package store

import _ "embed"

var (
	//go:embed create_tenant.sql
	createTenantSQL string
	//go:embed list_tenants.sql
	listTenantsSQL string
	//go:embed get_key.sql
	getKeySQL string
	//go:embed create_key.sql
	createKeySQL string
	//go:embed ensure_key.sql
	ensureKeySQL string
	//go:embed list_keys.sql
	listKeysSQL string
	//go:embed revoke_key.sql
	revokeKeySQL string
	//go:embed list_nodes.sql
	listNodesSQL string
	//go:embed list_modes.sql
	listModesSQL string
	//go:embed set_mode.sql
	setModeSQL string
	//go:embed audit.sql
	auditSQL string
	//go:embed claim_request.sql
	claimRequestSQL string
	//go:embed find_request.sql
	findRequestSQL string
	//go:embed put_request.sql
	putRequestSQL string
	//go:embed trim_requests.sql
	trimRequestsSQL string
)
