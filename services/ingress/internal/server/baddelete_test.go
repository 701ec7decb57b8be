package server_test

// badDeletes name no message, or two.
func badDeletes() map[string]badRequest {
	return map[string]badRequest{
		"delete_nothing":         {"DELETE", "/v1/queues/q/messages", ``, nil, 400, "MISSING_FIELD"},
		"delete_two_names":       {"DELETE", "/v1/queues/q/messages?message_id=m&client_id=c", ``, nil, 400, "CONFLICTING_FIELDS"},
		"delete_id_of_partition": {"DELETE", "/v1/queues/q/messages?message_id=m&partition=p", ``, nil, 400, "CONFLICTING_FIELDS"},
		"delete_a_partition":     {"DELETE", "/v1/queues/q/messages?partition=p", ``, nil, 400, "MISSING_FIELD"},
		"delete_unknown_name":    {"DELETE", "/v1/queues/q/messages?id=m", ``, nil, 400, "UNKNOWN_FIELD"},
		"delete_named_twice":     {"DELETE", "/v1/queues/q/messages?message_id=m&message_id=n", ``, nil, 400, "DUPLICATE_FIELD"},
	}
}
