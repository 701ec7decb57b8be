package server_test

// badQueueDelays are those about the delay of a queue.
func badQueueDelays() map[string]badRequest {
	return map[string]badRequest{
		"configure_delay_negative": {"PATCH", "/v1/queues/q", `{"options":{"delay":"-0.000000001s"}}`, nil, 400, "OUT_OF_RANGE"},
		"configure_delay_long":     {"PATCH", "/v1/queues/q", `{"options":{"delay":"900.000000001s"}}`, nil, 400, "OUT_OF_RANGE"},
		"configure_delay_ages":     {"PATCH", "/v1/queues/q", `{"options":{"delay":"315576000000s"}}`, nil, 400, "INVALID_DURATION"},
		"configure_delay_number":   {"PATCH", "/v1/queues/q", `{"options":{"delay":5}}`, nil, 400, "WRONG_TYPE"},
		"configure_delay_word":     {"PATCH", "/v1/queues/q", `{"options":{"delay":"soon"}}`, nil, 400, "INVALID_DURATION"},
		"configure_delay_object":   {"PATCH", "/v1/queues/q", `{"options":{"delay":{"seconds":5}}}`, nil, 400, "WRONG_TYPE"},
	}
}
