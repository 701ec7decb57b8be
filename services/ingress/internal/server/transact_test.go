package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/apierr"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// scriptedTransact answers by the names of queues and leases.
func scriptedTransact(req, resp proto.Message) error {
	transact, _ := req.(*queuev1.TransactRequest)
	out, _ := resp.(*queuev1.TransactResponse)
	results := func(bad int, code string) *queuev1.TransactResponse {
		all := &queuev1.TransactResponse{}
		for i := range transact.GetOperations() {
			r := &queuev1.TransactResult{Status: queuev1.TransactStatus_TRANSACT_STATUS_NOT_DONE}
			if i == bad {
				r.Status, r.Error = queuev1.TransactStatus_TRANSACT_STATUS_REFUSED, &queuev1.ItemError{Code: code, Message: "no", Field: fmt.Sprintf("operations[%d]", i)}
			}
			all.Results = append(all.Results, r)
		}
		return all
	}
	for i, op := range transact.GetOperations() {
		if op.GetAck().GetLease() == "stale" {
			return apierr.Aborted("STALE_EPOCH", "no").WithField(fmt.Sprintf("operations[%d].ack.lease", i)).WithDetail(results(i, "STALE_EPOCH")).GRPCStatus().Err()
		}
		r := &queuev1.TransactResult{Status: queuev1.TransactStatus_TRANSACT_STATUS_DONE}
		switch op.GetPush().GetQueue() {
		case "":
			r.Ack = &queuev1.AckResponse{Results: []*queuev1.AckResult{{MessageId: "m1", Status: queuev1.AckStatus_ACK_STATUS_SETTLED}}}
		case "full":
			return apierr.ResourceExhausted("QUEUE_FULL", "no", 1_000_000_000).WithDetail(results(i, "QUEUE_FULL")).GRPCStatus().Err()
		default:
			r.Push = &queuev1.PushResponse{}
			for n := range op.GetPush().GetItems() {
				r.Push.Results = append(r.Push.Results, &queuev1.PushResult{Status: queuev1.PushStatus_PUSH_STATUS_QUEUED, MessageId: "m", Offset: int64(n)})
			}
		}
		out.Results = append(out.Results, r)
	}
	return nil
}

func TestATransactionArrivesAsItWasWritten(t *testing.T) {
	t.Parallel()
	s := start(t)
	body := `{"operations":[{"push":{"queue":"a/b","origin":"me","items":[{"payload":{ "n" : 9007199254740993, "n":1 }},{"payload_base64":"/wA="}]}},` +
		`{"ack":{"queue":"in","lease":"l","settlements":[{"message_id":"m","action":"nack","delay":"2s"}]}}]}`

	got := s.request("POST", "/v1/transactions", body, "Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")

	require.Equal(t, http.StatusOK, got.status, got.body)
	req, _ := s.exchange.controls[0].(*queuev1.TransactRequest)
	items := req.GetOperations()[0].GetPush().GetItems()
	require.Equal(t, `{ "n" : 9007199254740993, "n":1 }`, string(items[0].GetPayload()))
	require.Equal(t, "application/json", items[0].GetContentType())
	require.Equal(t, "me", items[0].GetHeaders()["postrider-origin"])
	require.NotEmpty(t, items[0].GetHeaders()["traceparent"])
	require.Equal(t, []byte{0xff, 0}, items[1].GetPayload())
	require.Equal(t, queuev1.AckAction_ACK_ACTION_NACK, req.GetOperations()[1].GetAck().GetSettlements()[0].GetAction())
	require.Len(t, s.exchange.keys, 1, "it has a key although the client gave none")
}

func TestABadTransactionIsRefusedBeforeAnythingIsForwarded(t *testing.T) {
	t.Parallel()
	s := start(t)
	push := `{"queue":"q","items":[{"payload":1}]}`
	many := func(n int, one string) string { return strings.TrimSuffix(strings.Repeat(one+",", n), ",") }
	for name, c := range map[string]struct{ operations, code, field string }{
		"no operations":            {"", "MISSING_FIELD", "operations"},
		"an empty operation":       {`{}`, "MISSING_FIELD", "operations[0].push"},
		"both":                     {`{"push":` + push + `,"ack":{"queue":"q","lease":"l","settlements":[{"message_id":"m"}]}}`, "CONFLICTING_FIELDS", "operations[0].ack"},
		"no queue":                 {`{"push":{"items":[{"payload":1}]}}`, "NAME_EMPTY", "operations[0].push.queue"},
		"no items":                 {`{"push":{"queue":"q"}}`, "MISSING_FIELD", "operations[0].push.items"},
		"a key of the push":        {`{"push":{"queue":"q","idempotency_key":"k","items":[{"payload":1}]}}`, "CONFLICTING_FIELDS", "operations[0].push.idempotency_key"},
		"resent":                   {`{"push":{"queue":"q","resent":true,"items":[{"payload":1}]}}`, "CONFLICTING_FIELDS", "operations[0].push.resent"},
		"no lease":                 {`{"push":` + push + `},{"ack":{"queue":"q","settlements":[{"message_id":"m"}]}}`, "MISSING_FIELD", "operations[1].ack.lease"},
		"the rest of a lease":      {`{"ack":{"queue":"q","lease":"l","ack_rest":true}}`, "CONFLICTING_FIELDS", "operations[0].ack.ack_rest"},
		"nothing settled":          {`{"ack":{"queue":"q","lease":"l"}}`, "MISSING_FIELD", "operations[0].ack.settlements"},
		"a delay of an ack":        {`{"ack":{"queue":"q","lease":"l","settlements":[{"message_id":"m","delay":"1s"}]}}`, "CONFLICTING_FIELDS", "operations[0].ack.settlements[0].delay"},
		"an unknown action":        {`{"ack":{"queue":"q","lease":"l","settlements":[{"message_id":"m","action":"eat"}]}}`, "ENUM_UNKNOWN", "operations[0].ack.settlements[0].action"},
		"a long partition":         {`{"push":{"queue":"q","items":[{"payload":1},{"payload":1,"partition":"` + strings.Repeat("x", 256) + `"}]}}`, "NAME_TOO_LONG", "operations[0].push.items[1].partition"},
		"no payload":               {`{"push":{"queue":"q","items":[{}]}}`, "MISSING_FIELD", "operations[0].push.items[0].payload"},
		"two times":                {`{"push":{"queue":"q","items":[{"payload":1,"delay":"1s","deliver_at":"2030-01-01T00:00:00Z"}]}}`, "CONFLICTING_FIELDS", "operations[0].push.items[0].delay"},
		"an unknown field":         {`{"push":{"queue":"q","items":[{"payload":1,"nope":1}]}}`, "UNKNOWN_FIELD", "operations[0].push.items[0].nope"},
		"too many operations":      {many(101, `{"push":`+push+`}`), "TOO_MANY_ITEMS", "operations"},
		"too many items":           {`{"push":{"queue":"q","items":[` + many(600, `{"payload":1}`) + `]}},{"push":{"queue":"r","items":[` + many(401, `{"payload":1}`) + `]}}`, "TOO_MANY_ITEMS", ""},
		"too many items and marks": {`{"push":{"queue":"q","items":[` + many(600, `{"payload":1}`) + `]}},{"ack":{"queue":"r","lease":"l","settlements":[` + many(401, `{"message_id":"m"}`) + `]}}`, "TOO_MANY_ITEMS", "operations"},
	} {
		got := s.request("POST", "/v1/transactions", `{"operations":[`+c.operations+`]}`)
		require.Equal(t, http.StatusBadRequest, got.status, "%s: %s", name, got.body)
		var problem struct{ Code, Field string }
		require.NoError(t, json.Unmarshal([]byte(got.body), &problem), name)
		require.Equal(t, c.code, problem.Code, "%s: %s", name, got.body)
		require.True(t, strings.HasPrefix(problem.Field, c.field), "%s: %s", name, got.body)
	}
	require.Zero(t, s.exchange.forwarded())
}

func TestARefusedTransactionSaysOverBothSurfacesWhichOperationIsAtFault(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.exchange.control = scriptedControl
	req := &queuev1.TransactRequest{Operations: []*queuev1.TransactOperation{
		{Push: &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{{Payload: []byte("x")}}}},
		{Ack: &queuev1.AckRequest{Queue: "in", Lease: "stale", Settlements: []*queuev1.Settlement{{MessageId: "m"}}}},
	}}

	_, err := queuev1.NewQueueServiceClient(s.conn).Transact(s.as(adminKey), req)

	require.Equal(t, codes.Aborted, status.Code(err))
	e := apierr.From(err)
	require.Equal(t, "STALE_EPOCH", e.Reason)
	require.Len(t, e.Details(), 1)
	results, ok := e.Details()[0].(*queuev1.TransactResponse)
	require.True(t, ok)
	require.Equal(t, queuev1.TransactStatus_TRANSACT_STATUS_NOT_DONE, results.GetResults()[0].GetStatus())
	require.Equal(t, "STALE_EPOCH", results.GetResults()[1].GetError().GetCode())
}

func TestATransactionWhoseDispatcherIsLostIsCalledUnknownUntilSomebodyLooked(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.exchange.control = func(proto.Message, proto.Message) error { return status.Error(codes.Unavailable, "connection refused") }

	got := s.request("POST", "/v1/transactions", `{"operations":[{"push":{"queue":"q","items":[{"payload":1}]}}]}`)

	require.Equal(t, http.StatusServiceUnavailable, got.status)
	require.Contains(t, got.body, `"code":"OUTCOME_UNKNOWN"`)
}
