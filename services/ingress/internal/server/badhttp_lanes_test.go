package server_test

// badLanes are those about lanes and priorities.
func badLanes() map[string]badRequest {
	return map[string]badRequest{
		"item_priority_word":     {"POST", "/v1/queues/q/messages", `{"payload":1,"priority":"high"}`, nil, 400, "WRONG_TYPE"},
		"item_priority_fraction": {"POST", "/v1/queues/q/messages", `{"payload":1,"priority":0.5}`, nil, 400, "WRONG_TYPE"},
		"item_priority_null":     {"POST", "/v1/queues/q/messages", `{"payload":1,"priority":null}`, nil, 400, "WRONG_TYPE"},
		"item_priority_negative": {"POST", "/v1/queues/q/messages", `{"payload":1,"priority":-1}`, nil, 400, "OUT_OF_RANGE"},
		"item_priority_too_high": {"POST", "/v1/queues/q/messages", `{"payload":1,"priority":10}`, nil, 400, "OUT_OF_RANGE"},
		"item_priority_huge":     {"POST", "/v1/queues/q/messages", `{"payload":1,"priority":4294967296}`, nil, 400, "OUT_OF_RANGE"},
		"item_priority_twice":    {"POST", "/v1/queues/q/messages", `{"payload":1,"priority":0,"priority":1}`, nil, 400, "DUPLICATE_FIELD"},
		"configure_lanes_none":   {"PATCH", "/v1/queues/q", `{"options":{"lanes":0}}`, nil, 400, "OUT_OF_RANGE"},
		"configure_lanes_eleven": {"PATCH", "/v1/queues/q", `{"options":{"lanes":11}}`, nil, 400, "OUT_OF_RANGE"},
		"configure_lanes_word":   {"PATCH", "/v1/queues/q", `{"options":{"lanes":"two"}}`, nil, 400, "WRONG_TYPE"},
		"peek_priority_alone":    {"GET", "/v1/queues/q/peek?priority=1", ``, nil, 400, "CONFLICTING_FIELDS"},
		"peek_priority_too_high": {"GET", "/v1/queues/q/peek?partition=p&priority=10", ``, nil, 400, "OUT_OF_RANGE"},
	}
}
