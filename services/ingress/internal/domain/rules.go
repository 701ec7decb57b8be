package domain

import "time"

// Limits of the surface (DESIGN 16).
const (
	NameBytes     = 255
	MaxItems      = 1000
	MaxOperations = 100 // of a transaction
	HeaderPairs   = 64
	HeaderBytes   = 8 << 10
	PayloadBytes  = 16 << 20
	RequestBytes  = 32 << 20
	PopBytes      = 4 << 20 // of an answer, unless max_bytes says else
	ReasonBytes   = 1 << 10
	TokenBytes    = 4 << 10
	MaxLease      = 12 * time.Hour
	MaxWait       = 60 * time.Second
	maxWindow     = 7 * 24 * time.Hour
	MaxDelivery   = 366 * 24 * time.Hour // how far ahead a message may be delivered
	maxRetention  = 10 * 365 * 24 * time.Hour
	maxQueueSize  = 1 << 50
	MaxLanes      = 10
	maxQueueDelay = 15 * time.Minute
)

// Rules is the one table of what the fields of the surface may hold: each field of each request has a line. It returns a fresh copy.
func Rules() []Rule {
	var all []Rule
	for message, rules := range map[string][]Rule{
		"PushRequest": {
			name("queue"), list("items", 1, MaxItems), optional(name("idempotency_key")), free("resent"), optional(name("origin")), enum("require"),
		},
		"PushItem":                  pushItemRules(),
		"PushStreamRequest":         {list("entries", 1, MaxItems)},
		"PushStreamRequest.Entry":   {free("request_id"), required(nested("request"))},
		"PopRequest":                popRules(),
		"GroupOptions":              {enum("mode"), enum("on_failure"), {Field: "start", Check: Start, Max: 64}},
		"AckRequest":                {name("queue"), optional(name("group")), token("lease"), list("settlements", 0, MaxItems), free("ack_rest")},
		"Settlement":                settlementRules(),
		"RenewRequest":              {name("queue"), required(token("lease")), span("duration", time.Second, MaxLease)},
		"ReleaseRequest":            {name("queue"), required(token("lease")), list("message_ids", 0, MaxItems)},
		"TransactRequest":           {list("operations", 1, MaxOperations)},
		"TransactOperation":         {nested("push"), nested("ack")},
		"SubscribeRequest":          subscribeRules(),
		"LookupMessageRequest":      lookupRules(),
		"DeleteMessageRequest":      {name("queue"), optional(name("partition")), optional(name("client_id")), token("message_id")},
		"PeekMessagesRequest":       peekRules(),
		"ConfigureQueueRequest":     {name("queue"), nested("options"), list("reset", 0, 64)},
		"QueueOptions":              optionRules(),
		"RotateQueueKeyRequest":     {name("queue")},
		"ListQueuesRequest":         {count("page_size", 0, 1000), token("page_token"), optional(name("prefix"))},
		"GetQueueRequest":           {name("queue")},
		"DeleteQueueRequest":        {name("queue"), free("force")},
		"ListPartitionsRequest":     {name("queue"), count("page_size", 0, 1000), token("page_token")},
		"CreateGroupRequest":        {name("queue"), name("group"), nested("options")},
		"DeleteGroupRequest":        {name("queue"), name("group")},
		"SeekGroupRequest":          {name("queue"), name("group"), optional(name("partition")), {Field: "to", Check: Start, Max: 64}, list("offsets", 0, 64)},
		"ListDeadLettersRequest":    {name("queue"), optional(name("group")), count("page_size", 0, 1000), token("page_token"), free("include_redriven")},
		"GetDeadLetterRequest":      {name("queue"), required(token("id"))},
		"RedriveDeadLettersRequest": {name("queue"), list("ids", 0, MaxItems), optional(name("group")), count("limit", 0, 1000)},
		"PurgeDeadLettersRequest":   purgeRules(),
		"CreateTenantRequest":       {required(tenantID("id"))},
		"ListTenantsRequest":        {},
		"CreateAPIKeyRequest":       {tenantID("tenant"), name("name"), required(enum("role")), {Field: "expires_at", Check: Instant}},
		"ListAPIKeysRequest":        {tenantID("tenant")},
		"RevokeAPIKeyRequest":       {required(token("id"))},
		"ListNodesRequest":          {},
		"GetModesRequest":           {},
		"SetModeRequest": {
			{Field: "mode", Check: ModeName, Required: true, Max: NameBytes},
			{Field: "enabled", Check: Flag, Required: true},
			{Field: "reason", Check: Text, Max: NameBytes},
		},
		"GetSpoolRequest": {},
		"GetMeshRequest":  {},
	} {
		for _, r := range rules {
			r.Message = message
			all = append(all, r)
		}
	}
	return all
}

func pushItemRules() []Rule {
	return []Rule{
		optional(name("partition")),
		{Field: "payload", Check: Payload, Max: PayloadBytes},
		{Field: "content_type", Check: MediaType, Max: NameBytes},
		{Field: "headers", Check: Headers, Max: HeaderPairs},
		optional(name("client_id")),
		optional(name("idempotency_key")),
		{Field: "deliver_at", Check: Instant},
		span("delay", 0, MaxDelivery),
		count("priority", 0, MaxLanes-1),
	}
}

func popRules() []Rule {
	return []Rule{
		name("queue"),
		optional(name("group")),
		count("batch", 0, 1000),
		count("max_bytes", 0, RequestBytes),
		span("wait", 0, MaxWait),
		optional(name("partition")),
		count("partitions", 0, 1000),
		span("lease", time.Second, MaxLease),
		nested("group_options"),
		{Field: "consumer", Check: Text, Max: NameBytes},
		nested("settle"),
	}
}

func subscribeRules() []Rule {
	return []Rule{
		name("queue"),
		{Field: "from", Check: From, Max: TokenBytes},
		token("resume"),
		{Field: "partitions", Check: List, Max: MaxPartitions, Elements: Name},
		{Field: "headers", Check: Headers, Max: HeaderPairs},
		optional(name("skip_origin")),
	}
}

func lookupRules() []Rule {
	return []Rule{
		name("queue"), optional(name("partition")), optional(name("client_id")), token("message_id"),
		free("trace"), optional(name("group")), count("page_size", 0, 1000), token("page_token"),
	}
}

func peekRules() []Rule {
	return []Rule{
		name("queue"),
		count("shard", 0, MaxShards-1),
		optional(name("partition")),
		{Field: "from", Check: Place, Max: 64},
		count("limit", 0, 1000),
		count("max_bytes", 0, RequestBytes),
		count("priority", 0, MaxLanes-1),
	}
}

func purgeRules() []Rule {
	return []Rule{
		name("queue"),
		list("ids", 0, MaxItems),
		optional(name("group")),
		free("all"),
		{Field: "failed_before", Check: Instant},
		free("include_redriven"),
		count("limit", 0, 1000),
	}
}

func settlementRules() []Rule {
	return []Rule{
		token("message_id"),
		optional(name("client_id")),
		optional(name("partition")),
		enum("action"),
		span("delay", 0, MaxLease),
		{Field: "reason", Check: Text, Max: ReasonBytes},
	}
}

func optionRules() []Rule {
	return []Rule{
		span("lease", time.Second, MaxLease),
		count("max_attempts", 1, 1000),
		span("backoff", 0, time.Hour),
		span("backoff_max", 0, MaxLease),
		count("max_message_bytes", 1, PayloadBytes),
		span("idempotency_window", 0, maxWindow),
		count("max_groups", 1, 10_000),
		count("shards", 1, 64),
		span("retention", 0, maxRetention),
		count("retention_bytes", 0, maxQueueSize),
		free("retention_settled"),
		span("expire_after", time.Second, maxRetention),
		count("max_queue_bytes", 0, maxQueueSize),
		count("max_queue_messages", 0, maxQueueSize),
		enum("compression"),
		free("encryption"),
		count("lanes", 1, MaxLanes),
		free("trace"),
		span("delay", 0, maxQueueDelay),
	}
}

func name(field string) Rule {
	return Rule{Field: field, Check: Name, Required: true, Min: 1, Max: NameBytes}
}

func token(field string) Rule    { return Rule{Field: field, Check: Token, Max: TokenBytes} }
func tenantID(field string) Rule { return Rule{Field: field, Check: TenantID, Max: NameBytes} }
func enum(field string) Rule     { return Rule{Field: field, Check: Enum} }
func nested(field string) Rule   { return Rule{Field: field, Check: Nested} }
func free(field string) Rule     { return Rule{Field: field, Check: Free} }

func list(field string, low, high int64) Rule {
	return Rule{Field: field, Check: List, Required: low > 0, Min: low, Max: high}
}

func count(field string, low, high int64) Rule {
	return Rule{Field: field, Check: Count, Min: low, Max: high}
}

func span(field string, low, high time.Duration) Rule {
	return Rule{Field: field, Check: Span, Min: int64(low), Max: int64(high)}
}

func required(r Rule) Rule {
	r.Required = true
	return r
}

func optional(r Rule) Rule {
	r.Required = false
	return r
}
