package domain

import "postrider.dev/pkg/tenant"

// Area is the part of the surface a route belongs to.
type Area string

// The areas of this surface.
const (
	AreaQueue Area = "queue"
	AreaAdmin Area = "admin"
	AreaMeta  Area = "meta" // health and documentation: no tenant, no key
)

// Via says who answers a REST route.
type Via uint8

// The kinds of REST handlers.
const (
	ViaGateway Via = iota // grpc-gateway, through our own gRPC server
	ViaHandler            // ours
	ViaNone               // the RPC has no REST route
)

// Policy is what one operation of the surface needs: its REST route, its RPC, or both.
type Policy struct {
	Method  string
	Pattern string // chi's syntax, which for our paths is the gateway's too
	RPC     string // full name, /package.Service/Method
	Via     Via
	Area    Area
	Role    tenant.Role // NoRole: open to everybody
	// DefaultTenant admits callers of tenant "default" only: what it shows belongs to no tenant.
	DefaultTenant bool
}

const (
	queueRPC = "/postrider.queue.v1.QueueService/"
	adminRPC = "/postrider.admin.v1.AdminService/"
	queues   = "/v1/queues"
	one      = "/v1/queues/{queue}"
)

// Policies is the one table of what may be called and by whom; what is not in it is refused. It returns a fresh copy.
func Policies() []Policy {
	return append(queuePolicies(), append(adminPolicies(), metaPolicies()...)...)
}

func hot(pattern, rpc string) Policy {
	return Policy{Method: "POST", Pattern: pattern, RPC: queueRPC + rpc, Via: ViaHandler, Area: AreaQueue, Role: tenant.Write}
}

func control(method, pattern, rpc string, role tenant.Role) Policy {
	return Policy{Method: method, Pattern: pattern, RPC: queueRPC + rpc, Area: AreaQueue, Role: role}
}

// read is for answers that carry messages: ours, so that what nobody reads of them takes bounded memory.
func read(pattern, rpc string) Policy {
	return Policy{Method: "GET", Pattern: pattern, RPC: queueRPC + rpc, Via: ViaHandler, Area: AreaQueue, Role: tenant.Read}
}

func queuePolicies() []Policy {
	configure := control("PATCH", one, "ConfigureQueue", tenant.Admin)
	configure.Via = ViaHandler // null restores a default, which protojson cannot tell from absence
	return []Policy{
		hot(one+"/messages", "Push"),
		{RPC: queueRPC + "PushStream", Via: ViaNone, Area: AreaQueue, Role: tenant.Write},
		hot(one+"/pop", "Pop"),
		hot(one+"/ack", "Ack"),
		hot(one+"/renew", "Renew"),
		hot(one+"/release", "Release"),
		hot("/v1/transactions", "Transact"),
		{Method: "GET", Pattern: one + "/subscribe", RPC: queueRPC + "Subscribe", Via: ViaHandler, Area: AreaQueue, Role: tenant.Read},
		read(one+"/messages/lookup", "LookupMessage"),
		control("DELETE", one+"/messages", "DeleteMessage", tenant.Write),
		read(one+"/peek", "PeekMessages"),
		configure,
		control("POST", one+"/rotate-key", "RotateQueueKey", tenant.Admin),
		control("GET", queues, "ListQueues", tenant.Read),
		control("GET", one, "GetQueue", tenant.Read),
		control("DELETE", one, "DeleteQueue", tenant.Admin),
		control("GET", one+"/partitions", "ListPartitions", tenant.Read),
		control("POST", one+"/groups", "CreateGroup", tenant.Write),
		control("DELETE", one+"/groups/{group}", "DeleteGroup", tenant.Admin),
		control("POST", one+"/groups/{group}/seek", "SeekGroup", tenant.Admin),
		read(one+"/dead-letters", "ListDeadLetters"),
		read(one+"/dead-letters/{id}", "GetDeadLetter"),
		control("POST", one+"/dead-letters/redrive", "RedriveDeadLetters", tenant.Write),
		control("POST", one+"/dead-letters/purge", "PurgeDeadLetters", tenant.Admin),
	}
}

func adminPolicies() []Policy {
	admin := func(method, pattern, rpc string, defaultTenant bool) Policy {
		return Policy{
			Method: method, Pattern: "/v1/admin" + pattern, RPC: adminRPC + rpc,
			Area: AreaAdmin, Role: tenant.Admin, DefaultTenant: defaultTenant,
		}
	}
	return []Policy{
		admin("POST", "/tenants", "CreateTenant", true),
		admin("GET", "/tenants", "ListTenants", true),
		admin("POST", "/keys", "CreateAPIKey", false),
		admin("GET", "/keys", "ListAPIKeys", false),
		admin("DELETE", "/keys/{id}", "RevokeAPIKey", false),
		admin("GET", "/nodes", "ListNodes", true),
		admin("GET", "/modes", "GetModes", true),
		admin("PUT", "/modes/{mode}", "SetMode", true),
		admin("GET", "/spool", "GetSpool", true),
		admin("GET", "/mesh", "GetMesh", true),
		{Method: "GET", Pattern: "/api/v1/system/shared-state", Via: ViaHandler, Area: AreaAdmin, Role: tenant.Admin, DefaultTenant: true},
	}
}

func metaPolicies() []Policy {
	open := func(pattern string) Policy {
		return Policy{Method: "GET", Pattern: pattern, Via: ViaHandler, Area: AreaMeta}
	}
	rpc := func(name string) Policy {
		return Policy{RPC: name, Via: ViaNone, Area: AreaMeta}
	}
	return []Policy{
		open("/livez"), open("/readyz"), open("/openapi.json"), open("/docs"),
		rpc("/grpc.health.v1.Health/Check"), rpc("/grpc.health.v1.Health/List"), rpc("/grpc.health.v1.Health/Watch"),
	}
}

// Refusal is why Admit says no.
type Refusal uint8

// The refusals.
const (
	Admitted Refusal = iota
	RoleTooLow
	OtherTenant // the operation is the default tenant's
)

// Admit decides whether an authenticated caller may use p.
func (p Policy) Admit(c tenant.Caller) Refusal {
	switch {
	case p.Role == tenant.NoRole:
		return Admitted
	case !c.Role.Allows(p.Role):
		return RoleTooLow
	case p.DefaultTenant && c.Tenant != tenant.Default:
		return OtherTenant
	}
	return Admitted
}
