package conformance

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

func transact(t *testing.T, k kit) {
	in, out := k.name("in"), k.name("out")
	push(t, k, in, item("p", `1`), item("p", `2`))
	held := pop(t, k, in, 1)
	ackOf := func(resp *queuev1.PopResponse) *queuev1.TransactOperation {
		return &queuev1.TransactOperation{Ack: &queuev1.AckRequest{
			Queue: in, Lease: resp.GetLease(), Settlements: []*queuev1.Settlement{{MessageId: resp.GetDeliveries()[0].GetMessageId()}},
		}}
	}
	pushOf := &queuev1.TransactOperation{Push: &queuev1.PushRequest{Queue: out, Items: []*queuev1.PushItem{item("p", `{ "n" : 1 }`)}}}

	done, err := k.Transact(t.Context(), &queuev1.TransactRequest{Operations: []*queuev1.TransactOperation{ackOf(held), pushOf}})

	require.NoError(t, err)
	require.Equal(t, queuev1.TransactStatus_TRANSACT_STATUS_DONE, done.GetResults()[0].GetStatus())
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, done.GetResults()[0].GetAck().GetResults()[0].GetStatus())
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_QUEUED, done.GetResults()[1].GetPush().GetResults()[0].GetStatus())
	require.Equal(t, []string{`{ "n" : 1 }`}, payloadsOf(pop(t, k, out, 9)))
	next := pop(t, k, in, 9)
	require.Equal(t, []string{`2`}, payloadsOf(next))

	_, err = k.Transact(t.Context(), &queuev1.TransactRequest{Operations: []*queuev1.TransactOperation{ackOf(next), pushOf, ackOf(held)}})
	require.Error(t, err, "the last one was settled before")
	require.Contains(t, []string{"ALREADY_SETTLED", "STALE_EPOCH"}, Code(err), "%v", err)
	require.Empty(t, pop(t, k, out, 9).GetDeliveries())
	ackAll(t, k, in, next)
}

func (c overGRPC) Transact(ctx context.Context, req *queuev1.TransactRequest) (*queuev1.TransactResponse, error) {
	return c.queue.Transact(ctx, req)
}

// Transact writes payloads as JSON, as a client that has some does.
func (c overREST) Transact(ctx context.Context, req *queuev1.TransactRequest) (*queuev1.TransactResponse, error) {
	var ops []map[string]json.RawMessage
	for _, op := range req.GetOperations() {
		if op.GetAck() != nil {
			ack, err := (protojson.MarshalOptions{UseProtoNames: true}).Marshal(op.GetAck())
			if err != nil {
				return nil, err
			}
			ops = append(ops, map[string]json.RawMessage{"ack": ack})
			continue
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(pushBody(op.GetPush()), &fields); err != nil {
			return nil, err
		}
		name, err := json.Marshal(op.GetPush().GetQueue())
		if err != nil {
			return nil, err
		}
		fields["queue"] = name
		push, err := marshalRaw(fields)
		if err != nil {
			return nil, err
		}
		ops = append(ops, map[string]json.RawMessage{"push": push})
	}
	body := []byte(`{"operations":[`)
	for i, op := range ops {
		if i > 0 {
			body = append(body, ',')
		}
		one, err := marshalRaw(op)
		if err != nil {
			return nil, err
		}
		body = append(body, one...)
	}
	accept := http.Header{"Accept": {"application/json", "application/problem+json"}}
	answer, err := c.do(ctx, http.MethodPost, "/v1/transactions", accept, append(body, "]}"...))
	if err != nil {
		return nil, err
	}
	resp := &queuev1.TransactResponse{}
	if err := answer.problem(); err != nil {
		return nil, err
	}
	return resp, protojson.Unmarshal(answer.Body, resp)
}

// marshalRaw writes an object whose values keep their white space, which json.Marshal would take out.
func marshalRaw(fields map[string]json.RawMessage) ([]byte, error) {
	out := []byte{'{'}
	for name, value := range fields {
		key, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, key...), ':'), value...)
	}
	return append(out, '}'), nil
}
