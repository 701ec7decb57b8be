package server_test

import (
	"fmt"
	"strings"
)

// badInspection are requests of the routes that look at a queue, move a group, or steer the fleet.
func badInspection() map[string]badRequest {
	const peek, seek, lookup = "/v1/queues/q/peek", "/v1/queues/q/groups/g/seek", "/v1/queues/q/messages/lookup"
	long := strings.Repeat("x", 256)
	out := map[string]badRequest{
		"peek_limit_below":         {"GET", peek + "?limit=-1", ``, nil, 400, "OUT_OF_RANGE"},
		"peek_limit_word":          {"GET", peek + "?limit=all", ``, nil, 400, "WRONG_TYPE"},
		"peek_limit_twice":         {"GET", peek + "?limit=1&limit=2", ``, nil, 400, "DUPLICATE_FIELD"},
		"peek_shard_below":         {"GET", peek + "?shard=-1", ``, nil, 400, "OUT_OF_RANGE"},
		"peek_shard_above":         {"GET", peek + "?shard=512", ``, nil, 400, "OUT_OF_RANGE"},
		"peek_shard_fraction":      {"GET", peek + "?shard=0.5", ``, nil, 400, "WRONG_TYPE"},
		"peek_bytes_below":         {"GET", peek + "?max_bytes=-1", ``, nil, 400, "OUT_OF_RANGE"},
		"peek_bytes_above":         {"GET", peek + "?max_bytes=33554433", ``, nil, 400, "OUT_OF_RANGE"},
		"peek_from_negative":       {"GET", peek + "?from=-1", ``, nil, 400, "INVALID_START"},
		"peek_from_vector":         {"GET", peek + "?from=1,2", ``, nil, 400, "INVALID_START"},
		"peek_from_beyond":         {"GET", peek + "?from=9223372036854775808", ``, nil, 400, "INVALID_START"},
		"peek_partition_nul":       {"GET", peek + "?partition=a%00b", ``, nil, 400, "NAME_HAS_NUL"},
		"peek_partition_long":      {"GET", peek + "?partition=" + long, ``, nil, 400, "NAME_TOO_LONG"},
		"peek_partition_not_utf8":  {"GET", peek + "?partition=%ff", ``, nil, 400, "NAME_NOT_UTF8"},
		"peek_unknown":             {"GET", peek + "?group=g", ``, nil, 400, "UNKNOWN_FIELD"},
		"peek_body":                {"GET", peek, `{"limit":1}`, nil, 400, "UNEXPECTED_BODY"},
		"peek_post":                {"POST", peek, `{"limit":1}`, nil, 405, "METHOD_NOT_ALLOWED"},
		"lookup_nothing":           {"GET", lookup, ``, nil, 400, "MISSING_FIELD"},
		"lookup_two_names":         {"GET", lookup + "?client_id=c&message_id=m", ``, nil, 400, "CONFLICTING_FIELDS"},
		"lookup_trace_word":        {"GET", lookup + "?client_id=c&trace=perhaps", ``, nil, 400, "WRONG_TYPE"},
		"lookup_id_control":        {"GET", lookup + "?message_id=a%09b", ``, nil, 400, "TOKEN_MALFORMED"},
		"seek_empty_body":          {"POST", seek, ``, nil, 400, "MISSING_FIELD"},
		"seek_to_nothing":          {"POST", seek, `{"to":""}`, nil, 400, "MISSING_FIELD"},
		"seek_to_a_number":         {"POST", seek, `{"to":7}`, nil, 400, "WRONG_TYPE"},
		"seek_to_a_date":           {"POST", seek, `{"to":"2026-01-31"}`, nil, 400, "INVALID_START"},
		"seek_to_null":             {"POST", seek, `{"to":null}`, nil, 400, "MISSING_FIELD"},
		"seek_negative":            {"POST", seek, `{"offsets":["-1"]}`, nil, 400, "OUT_OF_RANGE"},
		"seek_beyond":              {"POST", seek, `{"offsets":["9223372036854775808"]}`, nil, 400, "OUT_OF_RANGE"},
		"seek_fraction":            {"POST", seek, `{"offsets":[1.5]}`, nil, 400, "WRONG_TYPE"},
		"seek_too_many":            {"POST", seek, `{"offsets":[` + strings.Repeat(`0,`, 64) + `0]}`, nil, 400, "TOO_MANY_ITEMS"},
		"seek_one_offset":          {"POST", seek, `{"offsets":"1"}`, nil, 400, "WRONG_TYPE"},
		"seek_partition_long":      {"POST", seek, `{"to":"latest","partition":"` + long + `"}`, nil, 400, "NAME_TOO_LONG"},
		"seek_unknown":             {"POST", seek, `{"to":"latest","force":true}`, nil, 400, "UNKNOWN_FIELD"},
		"seek_query":               {"POST", seek + "?to=latest", `{"to":"latest"}`, nil, 400, "UNEXPECTED_QUERY"},
		"seek_group_long":          {"POST", "/v1/queues/q/groups/" + long + "/seek", `{"to":"latest"}`, nil, 400, "NAME_TOO_LONG"},
		"seek_get":                 {"GET", seek, ``, nil, 405, "METHOD_NOT_ALLOWED"},
		"mesh_query":               {"GET", "/v1/admin/mesh?host=a", ``, nil, 400, "UNKNOWN_FIELD"},
		"mesh_body":                {"GET", "/v1/admin/mesh", `{}`, nil, 400, "UNEXPECTED_BODY"},
		"mesh_delete":              {"DELETE", "/v1/admin/mesh", ``, nil, 405, "METHOD_NOT_ALLOWED"},
		"mesh_put":                 {"PUT", "/v1/admin/mesh", `{"enabled":true}`, nil, 405, "METHOD_NOT_ALLOWED"},
		"mesh_below":               {"GET", "/v1/admin/mesh/peers", ``, nil, 404, "ROUTE_NOT_FOUND"},
		"mesh_no_key":              {"GET", "/v1/admin/mesh", ``, []string{"Authorization", ""}, 401, "MISSING_KEY"},
		"spool_query":              {"GET", "/v1/admin/spool?host=a", ``, nil, 400, "UNKNOWN_FIELD"},
		"shared_state_query":       {"GET", "/api/v1/system/shared-state?host=a", ``, nil, 400, "UNKNOWN_FIELD"},
		"shared_state_body":        {"GET", "/api/v1/system/shared-state", `{}`, nil, 400, "UNEXPECTED_BODY"},
		"shared_state_post":        {"POST", "/api/v1/system/shared-state", `{}`, nil, 405, "METHOD_NOT_ALLOWED"},
		"shared_state_no_key":      {"GET", "/api/v1/system/shared-state", ``, []string{"Authorization", ""}, 401, "MISSING_KEY"},
		"spool_body":               {"GET", "/v1/admin/spool", `{}`, nil, 400, "UNEXPECTED_BODY"},
		"spool_delete":             {"DELETE", "/v1/admin/spool", ``, nil, 405, "METHOD_NOT_ALLOWED"},
		"modes_query":              {"GET", "/v1/admin/modes?mode=maintenance", ``, nil, 400, "UNKNOWN_FIELD"},
		"mode_body_empty":          {"PUT", "/v1/admin/modes/maintenance", ``, nil, 400, "MISSING_FIELD"},
		"mode_enabled_null":        {"PUT", "/v1/admin/modes/maintenance", `{"enabled":null}`, nil, 400, "MISSING_FIELD"},
		"mode_enabled_number":      {"PUT", "/v1/admin/modes/maintenance", `{"enabled":1}`, nil, 400, "WRONG_TYPE"},
		"mode_enabled_twice":       {"PUT", "/v1/admin/modes/maintenance", `{"enabled":true,"enabled":false}`, nil, 400, "DUPLICATE_FIELD"},
		"mode_reason_long":         {"PUT", "/v1/admin/modes/maintenance", `{"enabled":true,"reason":"` + long + `"}`, nil, 400, "TEXT_TOO_LONG"},
		"mode_reason_nul":          {"PUT", "/v1/admin/modes/maintenance", `{"enabled":true,"reason":"a\u0000"}`, nil, 400, "TEXT_INVALID"},
		"mode_in_body":             {"PUT", "/v1/admin/modes/maintenance", `{"enabled":true,"mode":"pop_maintenance"}`, nil, 400, "UNKNOWN_FIELD"},
		"mode_upper_case":          {"PUT", "/v1/admin/modes/MAINTENANCE", `{"enabled":true}`, nil, 400, "ENUM_UNKNOWN"},
		"mode_post":                {"POST", "/v1/admin/modes/maintenance", `{"enabled":true}`, nil, 405, "METHOD_NOT_ALLOWED"},
		"dead_letters_page_word":   {"GET", "/v1/queues/q/dead-letters?page_size=many", ``, nil, 400, "WRONG_TYPE"},
		"dead_letters_page_above":  {"GET", "/v1/queues/q/dead-letters?page_size=1001", ``, nil, 400, "OUT_OF_RANGE"},
		"dead_letters_page_below":  {"GET", "/v1/queues/q/dead-letters?page_size=-1", ``, nil, 400, "OUT_OF_RANGE"},
		"dead_letters_token":       {"GET", "/v1/queues/q/dead-letters?page_token=%c3%a9", ``, nil, 400, "TOKEN_MALFORMED"},
		"dead_letters_group_long":  {"GET", "/v1/queues/q/dead-letters?group=" + long, ``, nil, 400, "NAME_TOO_LONG"},
		"dead_letters_redriven":    {"GET", "/v1/queues/q/dead-letters?include_redriven=perhaps", ``, nil, 400, "WRONG_TYPE"},
		"dead_letters_unknown":     {"GET", "/v1/queues/q/dead-letters?limit=5", ``, nil, 400, "UNKNOWN_FIELD"},
		"redrive_limit_above":      {"POST", "/v1/queues/q/dead-letters/redrive", `{"group":"g","limit":1001}`, nil, 400, "OUT_OF_RANGE"},
		"redrive_limit_below":      {"POST", "/v1/queues/q/dead-letters/redrive", `{"group":"g","limit":-1}`, nil, 400, "OUT_OF_RANGE"},
		"redrive_ids_too_many":     {"POST", "/v1/queues/q/dead-letters/redrive", `{"ids":[` + strings.Repeat(`"d",`, 1000) + `"d"]}`, nil, 400, "TOO_MANY_ITEMS"},
		"redrive_id_empty":         {"POST", "/v1/queues/q/dead-letters/redrive", `{"ids":[""]}`, nil, 400, "MISSING_FIELD"},
		"redrive_id_number":        {"POST", "/v1/queues/q/dead-letters/redrive", `{"ids":[7]}`, nil, 400, "WRONG_TYPE"},
		"redrive_unknown":          {"POST", "/v1/queues/q/dead-letters/redrive", `{"all":true}`, nil, 400, "UNKNOWN_FIELD"},
		"configure_shards_zero":    {"PATCH", "/v1/queues/q", `{"options":{"shards":0}}`, nil, 400, "OUT_OF_RANGE"},
		"configure_null_and_reset": {"PATCH", "/v1/queues/q", `{"options":{"lease":"5s","lease":null}}`, nil, 400, "DUPLICATE_FIELD"},
		"configure_list":           {"PATCH", "/v1/queues/q", `{"options":[]}`, nil, 400, "WRONG_TYPE"},
		"configure_reset_text":     {"PATCH", "/v1/queues/q", `{"reset":"lease"}`, nil, 400, "WRONG_TYPE"},
		"configure_flag_number":    {"PATCH", "/v1/queues/q", `{"options":{"retention_settled":1}}`, nil, 400, "WRONG_TYPE"},
		"configure_compression":    {"PATCH", "/v1/queues/q", `{"options":{"compression":"gzip"}}`, nil, 400, "ENUM_UNKNOWN"},
		"configure_bytes_fraction": {"PATCH", "/v1/queues/q", `{"options":{"max_queue_bytes":1.5}}`, nil, 400, "WRONG_TYPE"},
	}
	for option, bounds := range map[string][2]string{ // just below and just above what each may be
		"lease": {`"0.999999999s"`, `"43200.000000001s"`}, "max_attempts": {`0`, `1001`}, "backoff": {`"-0.000000001s"`, `"3600.000000001s"`},
		"backoff_max": {`"-1s"`, `"43201s"`}, "max_message_bytes": {`0`, `16777217`}, "idempotency_window": {`"-1s"`, `"604801s"`},
		"max_groups": {`0`, `10001`}, "shards": {`-1`, `65`}, "retention": {`"-1s"`, `"315360001s"`}, "retention_bytes": {`"-1"`, `"1125899906842625"`},
		"expire_after": {`"0s"`, `"315360001s"`}, "max_queue_bytes": {`"-1"`, `"1125899906842625"`}, "max_queue_messages": {`"-1"`, `"1125899906842625"`},
	} {
		for i, side := range []string{"below", "above"} {
			body := fmt.Sprintf(`{"options":{"%s":%s}}`, option, bounds[i])
			out["configure_"+option+"_"+side] = badRequest{"PATCH", "/v1/queues/q", body, nil, 400, "OUT_OF_RANGE"}
		}
	}
	return out
}

// badSubscriptions are subscriptions that never begin.
func badSubscriptions() map[string]badRequest {
	const path = "/v1/queues/q/subscribe"
	long := strings.Repeat("x", 256)
	many := strings.Repeat("&partitions=p", 101)
	return map[string]badRequest{
		"subscribe_from_word":           {"GET", path + "?from=yesterday", ``, nil, 400, "INVALID_START"},
		"subscribe_from_negative":       {"GET", path + "?from=-1", ``, nil, 400, "INVALID_START"},
		"subscribe_from_beyond":         {"GET", path + "?from=9223372036854775808", ``, nil, 400, "INVALID_START"},
		"subscribe_from_gap_in_vector":  {"GET", path + "?from=1,,2", ``, nil, 400, "INVALID_START"},
		"subscribe_from_and_resume":     {"GET", path + "?from=latest&resume=x", ``, nil, 400, "CONFLICTING_FIELDS"},
		"subscribe_resume_garbage":      {"GET", path + "?resume=garbage", ``, nil, 400, "TOKEN_MALFORMED"},
		"subscribe_last_event_garbage":  {"GET", path, ``, []string{"Last-Event-ID", "garbage"}, 400, "TOKEN_MALFORMED"},
		"subscribe_resume_not_ascii":    {"GET", path + "?resume=%c3%a9", ``, nil, 400, "TOKEN_MALFORMED"},
		"subscribe_partition_empty":     {"GET", path + "?partitions=", ``, nil, 400, "NAME_EMPTY"},
		"subscribe_partition_long":      {"GET", path + "?partitions=" + long, ``, nil, 400, "NAME_TOO_LONG"},
		"subscribe_partitions_too_many": {"GET", path + "?from=latest" + many, ``, nil, 400, "TOO_MANY_ITEMS"},
		"subscribe_origin_long":         {"GET", path + "?skip_origin=" + long, ``, nil, 400, "NAME_TOO_LONG"},
		"subscribe_unknown":             {"GET", path + "?group=g", ``, nil, 400, "UNKNOWN_FIELD"},
		"subscribe_from_twice":          {"GET", path + "?from=latest&from=earliest", ``, nil, 400, "DUPLICATE_FIELD"},
		"subscribe_body":                {"GET", path, `{}`, nil, 400, "UNEXPECTED_BODY"},
		"subscribe_post":                {"POST", path, `{}`, nil, 405, "METHOD_NOT_ALLOWED"},
		"subscribe_queue_nul":           {"GET", "/v1/queues/a%00b/subscribe", ``, nil, 400, "NAME_HAS_NUL"},
		"subscribe_nobody":              {"GET", path, ``, []string{"Authorization", ""}, 401, "MISSING_KEY"},
	}
}
