package server_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/apierr"
)

func TestBadHTTPIsRefusedBeforeAnythingIsForwarded(t *testing.T) {
	t.Parallel()
	s := start(t)
	cases := badHTTP()
	maps.Copy(cases, badInspection())
	maps.Copy(cases, badSubscriptions())
	maps.Copy(cases, badDeletes())
	maps.Copy(cases, badLanes())
	maps.Copy(cases, badTraces())
	maps.Copy(cases, badRotations())
	maps.Copy(cases, badQueueDelays())
	for name, c := range cases { //nolint:paralleltest // each counts what the one exchange got
		t.Run(name, func(t *testing.T) {
			before := s.exchange.forwarded()

			got := s.request(c.method, c.path, c.body, c.header...)

			require.Equal(t, before, s.exchange.forwarded(), "it was forwarded")
			require.Equal(t, c.status, got.status, "%.300s", got.body)
			var problem struct {
				Code   string
				Status int
			}
			require.NoError(t, json.Unmarshal([]byte(got.body), &problem), "%.300s", got.body)
			require.Equal(t, c.code, problem.Code, "%.300s", got.body)
			require.Equal(t, c.status, problem.Status)
			require.Equal(t, apierr.ContentType, got.header.Get("Content-Type"))
			require.NotEmpty(t, got.header.Get("X-Request-Id"))
		})
	}
	require.Equal(t, "DELETE, GET, PATCH", s.request(http.MethodPut, "/v1/queues/q", "").header.Get("Allow"))
	require.Contains(t, s.request(http.MethodPost, "/v1/queues/q/messages", `{"payload":1,}`).body, `"offset":"13"`)
}

// badRequest is a request that is wrong as HTTP or as a whole.
type badRequest struct {
	method, path, body string
	header             []string
	status             int
	code               string
}

// badHTTP names each by the rule it breaks.
func badHTTP() map[string]badRequest {
	deep := strings.Repeat("[", 129) + strings.Repeat("]", 129)
	return map[string]badRequest{
		"body_too_large":          {"POST", "/v1/queues/q/messages", `{"payload":"` + strings.Repeat("x", 32<<20) + `"}`, nil, 413, "PAYLOAD_TOO_LARGE"},
		"body_truncated":          {"POST", "/v1/queues/q/messages", `{"payload":{"a":`, nil, 400, "TRUNCATED_JSON"},
		"body_empty":              {"POST", "/v1/queues/q/messages", ``, nil, 400, "TRUNCATED_JSON"},
		"body_not_json":           {"POST", "/v1/queues/q/messages", `payload=1`, nil, 400, "INVALID_JSON"},
		"body_two_values":         {"POST", "/v1/queues/q/messages", `{"payload":1}{"payload":2}`, nil, 400, "INVALID_JSON"},
		"body_array":              {"POST", "/v1/queues/q/messages", `[{"payload":1}]`, nil, 400, "WRONG_TYPE"},
		"body_bom":                {"POST", "/v1/queues/q/messages", "\ufeff{\"payload\":1}", nil, 400, "INVALID_JSON"},
		"body_invalid_utf8":       {"POST", "/v1/queues/q/messages", "{\"payload\":\"\xff\"}", nil, 400, "INVALID_UTF8"},
		"body_control_character":  {"POST", "/v1/queues/q/messages", "{\"payload\":\"\x01\"}", nil, 400, "INVALID_JSON"},
		"body_leading_zero":       {"POST", "/v1/queues/q/messages", `{"payload":01}`, nil, 400, "INVALID_JSON"},
		"body_single_quotes":      {"POST", "/v1/queues/q/messages", `{'payload':1}`, nil, 400, "INVALID_JSON"},
		"body_trailing_comma":     {"POST", "/v1/queues/q/messages", `{"payload":1,}`, nil, 400, "INVALID_JSON"},
		"body_nan":                {"POST", "/v1/queues/q/messages", `{"payload":NaN}`, nil, 400, "INVALID_JSON"},
		"payload_too_deep":        {"POST", "/v1/queues/q/messages", `{"payload":` + deep + `}`, nil, 400, "JSON_TOO_DEEP"},
		"payload_missing":         {"POST", "/v1/queues/q/messages", `{"partition":"p"}`, nil, 400, "MISSING_FIELD"},
		"payload_twice":           {"POST", "/v1/queues/q/messages", `{"payload":1,"payload":2}`, nil, 400, "DUPLICATE_FIELD"},
		"payload_both":            {"POST", "/v1/queues/q/messages", `{"payload":1,"payload_base64":"eA=="}`, nil, 400, "CONFLICTING_FIELDS"},
		"payload_bad_base64":      {"POST", "/v1/queues/q/messages", `{"payload_base64":"x"}`, nil, 400, "INVALID_BASE64"},
		"payload_type_mismatch":   {"POST", "/v1/queues/q/messages", `{"payload":1,"content_type":"text/plain"}`, nil, 400, "INVALID_CONTENT_TYPE"},
		"payload_not_json":        {"POST", "/v1/queues/q/messages", `{"payload_base64":"eA==","content_type":"application/json"}`, nil, 400, "PAYLOAD_NOT_JSON"},
		"items_none":              {"POST", "/v1/queues/q/messages", `{"items":[]}`, nil, 400, "MISSING_FIELD"},
		"items_too_many":          {"POST", "/v1/queues/q/messages", `{"items":[` + strings.Repeat(`{"payload":1},`, 1000) + `{"payload":1}]}`, nil, 400, "TOO_MANY_ITEMS"},
		"items_null":              {"POST", "/v1/queues/q/messages", `{"items":null}`, nil, 400, "WRONG_TYPE"},
		"items_and_short_form":    {"POST", "/v1/queues/q/messages", `{"items":[{"payload":1}],"payload":1}`, nil, 400, "CONFLICTING_FIELDS"},
		"item_unknown_field":      {"POST", "/v1/queues/q/messages", `{"items":[{"payload":1,"urgency":1}]}`, nil, 400, "UNKNOWN_FIELD"},
		"item_partition_number":   {"POST", "/v1/queues/q/messages", `{"payload":1,"partition":7}`, nil, 400, "WRONG_TYPE"},
		"item_lone_surrogate":     {"POST", "/v1/queues/q/messages", `{"payload":1,"partition":"\ud800"}`, nil, 400, "INVALID_UTF8"},
		"keys_disagree":           {"POST", "/v1/queues/q/messages", `{"items":[{"payload":1}],"idempotency_key":"a"}`, []string{"Idempotency-Key", "b"}, 400, "CONFLICTING_FIELDS"},
		"key_header_too_long":     {"POST", "/v1/queues/q/messages", `{"payload":1}`, []string{"Idempotency-Key", strings.Repeat("k", 256)}, 400, "NAME_TOO_LONG"},
		"content_type_form":       {"POST", "/v1/queues/q/messages", `{"payload":1}`, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		"content_type_none":       {"POST", "/v1/queues/q/messages", `{"payload":1}`, []string{"Content-Type", ""}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		"content_type_latin1":     {"POST", "/v1/queues/q/messages", `{"payload":1}`, []string{"Content-Type", "application/json; charset=latin1"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		"content_encoding":        {"POST", "/v1/queues/q/messages", `{"payload":1}`, []string{"Content-Encoding", "gzip"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		"method_wrong":            {"PUT", "/v1/queues/q/messages", `{"payload":1}`, nil, 405, "METHOD_NOT_ALLOWED"},
		"route_unknown":           {"GET", "/v1/nothing", ``, nil, 404, "ROUTE_NOT_FOUND"},
		"route_trailing_slash":    {"GET", "/v1/queues/", ``, nil, 404, "ROUTE_NOT_FOUND"},
		"queue_empty":             {"POST", "/v1/queues//messages", `{"payload":1}`, nil, 400, "NAME_EMPTY"},
		"queue_nul":               {"POST", "/v1/queues/a%00b/messages", `{"payload":1}`, nil, 400, "NAME_HAS_NUL"},
		"queue_invalid_utf8":      {"POST", "/v1/queues/a%ffb/messages", `{"payload":1}`, nil, 400, "NAME_NOT_UTF8"},
		"queue_in_body":           {"POST", "/v1/queues/q/pop", `{"queue":"other"}`, nil, 400, "UNKNOWN_FIELD"},
		"pop_header_filter":       {"POST", "/v1/queues/q/pop", `{"headers":{"a":"b"}}`, nil, 400, "UNKNOWN_FIELD"},
		"pop_unknown_field":       {"POST", "/v1/queues/q/pop", `{"bach":1}`, nil, 400, "UNKNOWN_FIELD"},
		"pop_field_twice":         {"POST", "/v1/queues/q/pop", `{"batch":1,"batch":2}`, nil, 400, "DUPLICATE_FIELD"},
		"pop_both_spellings":      {"POST", "/v1/queues/q/pop", `{"max_bytes":1,"maxBytes":2}`, nil, 400, "DUPLICATE_FIELD"},
		"pop_batch_text":          {"POST", "/v1/queues/q/pop", `{"batch":"many"}`, nil, 400, "WRONG_TYPE"},
		"pop_batch_fraction":      {"POST", "/v1/queues/q/pop", `{"batch":1.5}`, nil, 400, "WRONG_TYPE"},
		"pop_batch_huge":          {"POST", "/v1/queues/q/pop", `{"batch":99999999999}`, nil, 400, "OUT_OF_RANGE"},
		"pop_wait_number":         {"POST", "/v1/queues/q/pop", `{"wait":5}`, nil, 400, "WRONG_TYPE"},
		"pop_wait_word":           {"POST", "/v1/queues/q/pop", `{"wait":"soon"}`, nil, 400, "INVALID_DURATION"},
		"pop_settle_other_queue":  {"POST", "/v1/queues/q/pop", `{"settle":{"queue":"r","lease":"l","ack_rest":true}}`, nil, 400, "CONFLICTING_FIELDS"},
		"pop_settle_no_lease":     {"POST", "/v1/queues/q/pop", `{"settle":{"settlements":[{"message_id":"m"}]}}`, nil, 400, "MISSING_FIELD"},
		"ack_nothing":             {"POST", "/v1/queues/q/ack", `{"lease":"l"}`, nil, 400, "MISSING_FIELD"},
		"ack_rest_without_lease":  {"POST", "/v1/queues/q/ack", `{"ack_rest":true}`, nil, 400, "MISSING_FIELD"},
		"ack_no_name":             {"POST", "/v1/queues/q/ack", `{"lease":"l","settlements":[{}]}`, nil, 400, "MISSING_FIELD"},
		"ack_two_names":           {"POST", "/v1/queues/q/ack", `{"lease":"l","settlements":[{"message_id":"m","client_id":"c"}]}`, nil, 400, "CONFLICTING_FIELDS"},
		"ack_delay_without_nack":  {"POST", "/v1/queues/q/ack", `{"lease":"l","settlements":[{"message_id":"m","delay":"1s"}]}`, nil, 400, "CONFLICTING_FIELDS"},
		"configure_unknown":       {"PATCH", "/v1/queues/q", `{"options":{"colour":"7d"}}`, nil, 400, "UNKNOWN_OPTION"},
		"configure_reset_unknown": {"PATCH", "/v1/queues/q", `{"reset":["nonsense"]}`, nil, 400, "UNKNOWN_OPTION"},
		"configure_set_and_reset": {"PATCH", "/v1/queues/q", `{"options":{"lease":"5s"},"reset":["lease"]}`, nil, 400, "CONFLICTING_FIELDS"},
		"query_unknown":           {"GET", "/v1/queues?limit=5", ``, nil, 400, "UNKNOWN_FIELD"},
		"query_twice":             {"GET", "/v1/queues?page_size=5&page_size=6", ``, nil, 400, "DUPLICATE_FIELD"},
		"query_wrong_type":        {"GET", "/v1/queues?page_size=many", ``, nil, 400, "WRONG_TYPE"},
		"query_on_post":           {"POST", "/v1/queues/q/groups?group=g", `{"group":"g"}`, nil, 400, "UNEXPECTED_QUERY"},
		"body_on_get":             {"GET", "/v1/queues", `{"page_size":5}`, nil, 400, "UNEXPECTED_BODY"},
		"redrive_both":            {"POST", "/v1/queues/q/dead-letters/redrive", `{"ids":["d"],"group":"g"}`, nil, 400, "CONFLICTING_FIELDS"},
		"purge_what":              {"POST", "/v1/queues/q/dead-letters/purge", `{}`, nil, 400, "MISSING_FIELD"},
		"purge_not_all":           {"POST", "/v1/queues/q/dead-letters/purge", `{"all":false,"failed_before":"2026-01-31T09:00:00Z"}`, nil, 400, "MISSING_FIELD"},
		"purge_both":              {"POST", "/v1/queues/q/dead-letters/purge", `{"ids":["d"],"group":"g"}`, nil, 400, "CONFLICTING_FIELDS"},
		"purge_all_of_a_group":    {"POST", "/v1/queues/q/dead-letters/purge", `{"all":true,"group":"g"}`, nil, 400, "CONFLICTING_FIELDS"},
		"purge_ids_before":        {"POST", "/v1/queues/q/dead-letters/purge", `{"ids":["d"],"failed_before":"2026-01-31T09:00:00Z"}`, nil, 400, "CONFLICTING_FIELDS"},
		"purge_ids_limit":         {"POST", "/v1/queues/q/dead-letters/purge", `{"ids":["d"],"limit":5}`, nil, 400, "CONFLICTING_FIELDS"},
		"purge_before_a_word":     {"POST", "/v1/queues/q/dead-letters/purge", `{"all":true,"failed_before":"yesterday"}`, nil, 400, "INVALID_TIME"},
		"purge_too_many":          {"POST", "/v1/queues/q/dead-letters/purge", `{"all":true,"limit":1001}`, nil, 400, "OUT_OF_RANGE"},
		"purge_all_as_text":       {"POST", "/v1/queues/q/dead-letters/purge", `{"all":"yes"}`, nil, 400, "WRONG_TYPE"},
		"seek_nowhere":            {"POST", "/v1/queues/q/groups/g/seek", `{}`, nil, 400, "MISSING_FIELD"},
		"seek_two_ways":           {"POST", "/v1/queues/q/groups/g/seek", `{"to":"latest","offsets":["1"]}`, nil, 400, "CONFLICTING_FIELDS"},
		"seek_to_a_word":          {"POST", "/v1/queues/q/groups/g/seek", `{"to":"yesterday"}`, nil, 400, "INVALID_START"},
		"peek_shard_of_partition": {"GET", "/v1/queues/q/peek?shard=0&partition=p", ``, nil, 400, "CONFLICTING_FIELDS"},
		"peek_from_a_time":        {"GET", "/v1/queues/q/peek?from=2026-01-31T09:00:00Z", ``, nil, 400, "INVALID_START"},
		"peek_too_many":           {"GET", "/v1/queues/q/peek?limit=1001", ``, nil, 400, "OUT_OF_RANGE"},
		"redrive_limit_with_ids":  {"POST", "/v1/queues/q/dead-letters/redrive", `{"ids":["d"],"limit":5}`, nil, 400, "CONFLICTING_FIELDS"},
		"key_missing":             {"GET", "/v1/queues", ``, []string{"Authorization", ""}, 401, "MISSING_KEY"},
		"key_malformed":           {"GET", "/v1/queues", ``, []string{"Authorization", "Bearer hunter2"}, 401, "INVALID_KEY"},
		"key_other_scheme":        {"GET", "/v1/queues", ``, []string{"Authorization", "Basic YTpi"}, 401, "INVALID_KEY"},
		"key_two_different":       {"GET", "/v1/queues", ``, []string{"X-API-Key", readKey}, 401, "AMBIGUOUS_KEY"},
		"mode_unknown":            {"PUT", "/v1/admin/modes/siesta", `{"enabled":true}`, nil, 400, "ENUM_UNKNOWN"},
		"mode_enabled_missing":    {"PUT", "/v1/admin/modes/pop_maintenance", `{"reason":"r"}`, nil, 400, "MISSING_FIELD"},
		"mode_enabled_text":       {"PUT", "/v1/admin/modes/pop_maintenance", `{"enabled":"perhaps"}`, nil, 400, "WRONG_TYPE"},
		"push_require_unknown":    {"POST", "/v1/queues/q/messages", `{"payload":1,"require":"luck"}`, nil, 400, "ENUM_UNKNOWN"},
		"push_require_number":     {"POST", "/v1/queues/q/messages", `{"payload":1,"require":1}`, nil, 400, "WRONG_TYPE"},
		"push_require_in_item":    {"POST", "/v1/queues/q/messages", `{"items":[{"payload":1,"require":"committed"}]}`, nil, 400, "UNKNOWN_FIELD"},
		"key_expiry_past":         {"POST", "/v1/admin/keys", `{"name":"n","role":"read","expires_at":"2001-01-01T00:00:00Z"}`, nil, 400, "EXPIRES_IN_THE_PAST"},
		"method_override":         {"POST", "/v1/queues/q/groups", `group=g`, []string{"Content-Type", "application/x-www-form-urlencoded", "X-HTTP-Method-Override", "DELETE"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
	}
}

// badTraces are requests for the trace of a message that are refused.
func badTraces() map[string]badRequest {
	return map[string]badRequest{
		"trace_group_only":        {"GET", "/v1/queues/q/messages/lookup?client_id=c&group=g", ``, nil, 400, "CONFLICTING_FIELDS"},
		"trace_events_only":       {"GET", "/v1/queues/q/messages/lookup?client_id=c&page_size=5", ``, nil, 400, "CONFLICTING_FIELDS"},
		"trace_after_only":        {"GET", "/v1/queues/q/messages/lookup?client_id=c&page_token=x", ``, nil, 400, "CONFLICTING_FIELDS"},
		"trace_too_many_events":   {"GET", "/v1/queues/q/messages/lookup?client_id=c&trace=true&page_size=1001", ``, nil, 400, "OUT_OF_RANGE"},
		"trace_negative_events":   {"GET", "/v1/queues/q/messages/lookup?client_id=c&trace=true&page_size=-1", ``, nil, 400, "OUT_OF_RANGE"},
		"trace_events_of_a_word":  {"GET", "/v1/queues/q/messages/lookup?client_id=c&trace=true&page_size=many", ``, nil, 400, "WRONG_TYPE"},
		"option_trace_no_boolean": {"PATCH", "/v1/queues/q", `{"options":{"trace":"sometimes"}}`, nil, 400, "WRONG_TYPE"},
	}
}
