package server_test

import "strings"

// badRotations ask for more than a new key.
func badRotations() map[string]badRequest {
	return map[string]badRequest{
		"rotate_unknown_field": {"POST", "/v1/queues/q/rotate-key", `{"key":"mine"}`, nil, 400, "UNKNOWN_FIELD"},
		"rotate_other_queue":   {"POST", "/v1/queues/q/rotate-key", `{"queue":"r"}`, nil, 400, "UNKNOWN_FIELD"},
		"rotate_query":         {"POST", "/v1/queues/q/rotate-key?force=true", `{}`, nil, 400, "UNEXPECTED_QUERY"},
		"rotate_not_an_object": {"POST", "/v1/queues/q/rotate-key", `[]`, nil, 400, "WRONG_TYPE"},
		"rotate_half_a_body":   {"POST", "/v1/queues/q/rotate-key", `{`, nil, 400, "TRUNCATED_JSON"},
		"rotate_name_too_long": {"POST", "/v1/queues/" + strings.Repeat("q", 256) + "/rotate-key", `{}`, nil, 400, "NAME_TOO_LONG"},
		"rotate_by_get":        {"GET", "/v1/queues/q/rotate-key", ``, nil, 405, "METHOD_NOT_ALLOWED"},
		"rotate_no_key":        {"POST", "/v1/queues/q/rotate-key", `{}`, []string{"Authorization", ""}, 401, "MISSING_KEY"},
	}
}
