package server_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/apierr"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

var update = flag.Bool("update", false, "rewrite the golden files") //nolint:gochecknoglobals // flags are

// TestTranscriptsAreWhatTheGoldensSay runs each testdata/*.txt: requests as people write them, with the answers below. With -update the answers
// are rewritten.
func TestTranscriptsAreWhatTheGoldensSay(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			s := start(t)
			s.exchange.answer, s.exchange.control = scripted, scriptedControl
			want, err := os.ReadFile(file)
			require.NoError(t, err)

			got := replay(t, s, string(want))

			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
				return
			}
			require.Empty(t, cmp.Diff(string(want), got), "run with -update to rewrite %s", file)
		})
	}
}

// replay sends the requests of a transcript and returns the transcript with the answers that came. A section "-- name.req --" holds a request: its line,
// headers, an empty line, the body.
func replay(t *testing.T, s *surface, transcript string) string {
	t.Helper()
	var out strings.Builder
	for section := range strings.SplitSeq("\n"+transcript, "\n-- ") {
		name, text, ok := strings.Cut(section, " --\n")
		if !ok {
			if comment := strings.TrimPrefix(section, "\n"); comment != "" {
				out.WriteString(strings.TrimSuffix(comment, "\n") + "\n")
			}
			continue
		}
		base, isRequest := strings.CutSuffix(name, ".req")
		if !isRequest {
			continue
		}
		text = strings.TrimSuffix(text, "\n")
		head, body, _ := strings.Cut(text, "\n\n")
		lines := strings.Split(head, "\n")
		method, path, _ := strings.Cut(lines[0], " ")
		var header []string
		for _, line := range lines[1:] {
			k, v, _ := strings.Cut(line, ": ")
			header = append(header, k, strings.TrimSpace(v))
		}
		got := s.request(method, path, body, header...)
		fmt.Fprintf(&out, "-- %s.req --\n%s\n-- %s.resp --\n%s\n", base, text, base, show(got))
	}
	return out.String()
}

func show(a answer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d\n", a.status)
	for _, name := range []string{"Allow", "Content-Type", "Idempotency-Replayed", "Postrider-Draining", "Retry-After", "Www-Authenticate"} {
		if v := a.header.Get(name); v != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, v)
		}
	}
	if a.body != "" {
		var pretty bytes.Buffer
		if a.header.Get("Content-Type") == apierr.ContentType && json.Indent(&pretty, []byte(a.body), "", "  ") == nil {
			a.body = strings.TrimSpace(pretty.String())
		}
		b.WriteString("\n" + a.body + "\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// scripted answers hot verbs by the name of their queue.
func scripted(op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
	fail := func(err *apierr.Error) (*dispatcherv1.Result, error) {
		return &dispatcherv1.Result{Result: &dispatcherv1.Result_Error{Error: err.GRPCStatus().Proto()}}, nil
	}
	if op.GetRenew().GetLease() == "stale" || op.GetAck().GetLease() == "stale" {
		return fail(apierr.Aborted("STALE_EPOCH", "the lease is over"))
	}
	switch {
	case op.GetPush().GetQueue() == "full":
		return fail(apierr.ResourceExhausted("QUEUE_FULL", "the queue is full", 2_500_000_000))
	case op.GetPush() != nil:
		res, err := accept(op)
		for i, it := range op.GetPush().GetItems() {
			if it.GetIdempotencyKey() == "reused" {
				res.GetPush().Results[i] = &queuev1.PushResult{
					Status: queuev1.PushStatus_PUSH_STATUS_FAILED,
					Error:  &queuev1.ItemError{Code: "IDEMPOTENCY_KEY_REUSED", Message: "another body", Field: "idempotency_key"},
				}
			}
		}
		res.GetPush().Replayed = op.GetPush().GetIdempotencyKey() == "again"
		return res, err
	case op.GetPop().GetQueue() == "orders":
		return &dispatcherv1.Result{Result: &dispatcherv1.Result_Pop{Pop: &queuev1.PopResponse{
			Lease: "lease-1", LeaseExpiresAt: timestamppb.New(t0()), LeaseDuration: durationpb.New(30_500_000_000),
			Deliveries: []*queuev1.Delivery{
				{
					MessageId: "m1", Partition: "p", Offset: 9007199254740993, Payload: []byte(`{ "n" : 9007199254740993, "n":1 }`),
					ContentType: "application/json", Headers: map[string]string{"b": "2", "a": "1\n"}, ClientId: "c", Attempt: 1, CreatedAt: timestamppb.New(t0()),
				},
				{MessageId: "m2", Partition: "p", Payload: []byte{0xff, 0}, ContentType: "application/octet-stream", Attempt: 2, CreatedAt: timestamppb.New(t0())},
			},
		}}}, nil
	case op.GetAck() != nil:
		return &dispatcherv1.Result{Result: &dispatcherv1.Result_Ack{Ack: &queuev1.AckResponse{RestAcked: 2, Results: []*queuev1.AckResult{
			{MessageId: "m1", Status: queuev1.AckStatus_ACK_STATUS_SETTLED},
			{MessageId: "m2", Status: queuev1.AckStatus_ACK_STATUS_REFUSED, Error: &queuev1.ItemError{Code: "STALE_EPOCH", Message: "the lease is over"}},
		}}}}, nil
	case op.GetRenew() != nil:
		return &dispatcherv1.Result{Result: &dispatcherv1.Result_Renew{Renew: &queuev1.RenewResponse{LeaseExpiresAt: timestamppb.New(t0())}}}, nil
	}
	return accept(op)
}

func scriptedControl(req, resp proto.Message) error {
	queue := &queuev1.Queue{
		Id: "1", Name: "orders", Options: &queuev1.QueueOptions{Lease: durationpb.New(30_000_000_000), MaxAttempts: proto.Int32(5)},
		ConfigVersion: 2, CreatedAt: timestamppb.New(t0()), Messages: 3, PushRate: 1.5,
	}
	switch resp := resp.(type) {
	case *queuev1.ConfigureQueueResponse:
		configured, _ := req.(*queuev1.ConfigureQueueRequest)
		queue.Name = configured.GetQueue() + " reset:" + strings.Join(configured.GetReset_(), ",")
		queue.Options = configured.GetOptions()
		resp.Queue = queue
	case *queuev1.ListQueuesResponse:
		resp.Queues, resp.NextPageToken = []*queuev1.Queue{queue}, "next"
	case *queuev1.GetQueueResponse:
		get, _ := req.(*queuev1.GetQueueRequest)
		if get.GetQueue() == "none" {
			return apierr.NotFound("QUEUE_NOT_FOUND", "there is no queue of that name").GRPCStatus().Err()
		}
		queue.Name = get.GetQueue()
		resp.Queue = queue
		resp.Groups = []*queuev1.Group{{Name: "default", Mode: queuev1.GroupMode_GROUP_MODE_ORDERED, Start: "earliest", CreatedAt: timestamppb.New(t0())}}
	case *queuev1.GetDeadLetterResponse:
		resp.DeadLetter = &queuev1.DeadLetter{Id: "d1", Queue: "orders", Payload: []byte(`[ 1e400 ]`), ContentType: "application/json", PayloadBytes: 9, FailedAt: timestamppb.New(t0())}
	case *queuev1.ListDeadLettersResponse:
		resp.DeadLetters = []*queuev1.DeadLetter{{Id: "d1", Queue: "orders", ContentType: "application/json", PayloadBytes: 9, FailedAt: timestamppb.New(t0())}}
	}
	return nil
}

func TestBadHTTPIsRefusedBeforeAnythingIsForwarded(t *testing.T) {
	t.Parallel()
	s := start(t)
	deep := strings.Repeat("[", 129) + strings.Repeat("]", 129)
	cases := map[string]struct {
		method, path, body string
		header             []string
		status             int
		code               string
	}{
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
		"item_unknown_field":      {"POST", "/v1/queues/q/messages", `{"items":[{"payload":1,"priority":1}]}`, nil, 400, "UNKNOWN_FIELD"},
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
		"configure_unknown":       {"PATCH", "/v1/queues/q", `{"options":{"retention":"7d"}}`, nil, 400, "UNKNOWN_OPTION"},
		"configure_reset_unknown": {"PATCH", "/v1/queues/q", `{"reset":["nonsense"]}`, nil, 400, "UNKNOWN_OPTION"},
		"configure_set_and_reset": {"PATCH", "/v1/queues/q", `{"options":{"lease":"5s"},"reset":["lease"]}`, nil, 400, "CONFLICTING_FIELDS"},
		"query_unknown":           {"GET", "/v1/queues?limit=5", ``, nil, 400, "UNKNOWN_FIELD"},
		"query_twice":             {"GET", "/v1/queues?page_size=5&page_size=6", ``, nil, 400, "DUPLICATE_FIELD"},
		"query_wrong_type":        {"GET", "/v1/queues?page_size=many", ``, nil, 400, "WRONG_TYPE"},
		"query_on_post":           {"POST", "/v1/queues/q/groups?group=g", `{"group":"g"}`, nil, 400, "UNEXPECTED_QUERY"},
		"body_on_get":             {"GET", "/v1/queues", `{"page_size":5}`, nil, 400, "UNEXPECTED_BODY"},
		"redrive_both":            {"POST", "/v1/queues/q/dead-letters/redrive", `{"ids":["d"],"group":"g"}`, nil, 400, "CONFLICTING_FIELDS"},
		"redrive_limit_with_ids":  {"POST", "/v1/queues/q/dead-letters/redrive", `{"ids":["d"],"limit":5}`, nil, 400, "CONFLICTING_FIELDS"},
		"key_missing":             {"GET", "/v1/queues", ``, []string{"Authorization", ""}, 401, "MISSING_KEY"},
		"key_malformed":           {"GET", "/v1/queues", ``, []string{"Authorization", "Bearer hunter2"}, 401, "INVALID_KEY"},
		"key_other_scheme":        {"GET", "/v1/queues", ``, []string{"Authorization", "Basic YTpi"}, 401, "INVALID_KEY"},
		"key_two_different":       {"GET", "/v1/queues", ``, []string{"X-API-Key", readKey}, 401, "AMBIGUOUS_KEY"},
		"key_expiry_past":         {"POST", "/v1/admin/keys", `{"name":"n","role":"read","expires_at":"2001-01-01T00:00:00Z"}`, nil, 400, "EXPIRES_IN_THE_PAST"},
		"method_override":         {"POST", "/v1/queues/q/groups", `group=g`, []string{"Content-Type", "application/x-www-form-urlencoded", "X-HTTP-Method-Override", "DELETE"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // counts what the one exchange got
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
