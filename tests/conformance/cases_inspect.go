package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

func seekGroup(t *testing.T, k kit) {
	q := k.name("seek")
	push(t, k, q, item("p", `1`), item("p", `2`), item("p", `3`))
	ackAll(t, k, q, pop(t, k, q, 1))
	held := pop(t, k, q, 1)

	back, err := k.SeekGroup(t.Context(), &queuev1.SeekGroupRequest{Queue: q, Group: "default", To: "earliest"})

	require.NoError(t, err)
	require.EqualValues(t, 1, back.GetFencedLeases())
	require.EqualValues(t, 1, back.GetFencedMessages())
	require.EqualValues(t, 1, back.GetPositions()[0].GetFrom())
	require.EqualValues(t, 0, back.GetPositions()[0].GetTo())
	_, err = k.Ack(t.Context(), &queuev1.AckRequest{Queue: q, Lease: held.GetLease(), AckRest: true})
	require.Equal(t, "STALE_EPOCH", Code(err), "%v", err)
	_, err = k.SeekGroup(t.Context(), &queuev1.SeekGroupRequest{Queue: q, Group: "default", Offsets: []int64{2}})
	require.NoError(t, err)
	require.Equal(t, []string{`3`}, payloadsOf(pop(t, k, q, 9)))
	for field, req := range map[string]*queuev1.SeekGroupRequest{
		"offsets[0]": {Queue: q, Group: "default", Offsets: []int64{9}},
		"offsets":    {Queue: q, Group: "default", Offsets: []int64{0, 0}},
	} {
		_, err = k.SeekGroup(t.Context(), req)
		require.Equal(t, "OUT_OF_RANGE", Code(err), "%s: %v", field, err)
	}
	_, err = k.SeekGroup(t.Context(), &queuev1.SeekGroupRequest{Queue: q, Group: "nobody", To: "latest"})
	require.Equal(t, "GROUP_NOT_FOUND", Code(err), "%v", err)
}

func peek(t *testing.T, k kit) {
	q := k.name("peek")
	first := item("p", `{ "x" : 1 }`)
	first.ClientId, first.Headers = "order 7/8", map[string]string{"h": "v"}
	pushed := push(t, k, q, first, item("r", `2`), item("p", `3`))
	held := pop(t, k, q, 1)
	before, err := k.GetQueue(t.Context(), &queuev1.GetQueueRequest{Queue: q})
	require.NoError(t, err)

	all, err := k.PeekMessages(t.Context(), &queuev1.PeekMessagesRequest{Queue: q})
	require.NoError(t, err)
	require.Equal(t, []string{`{ "x" : 1 }`, `2`, `3`}, peeked(all))
	require.Equal(t, []int64{0, 3, 0, 3}, []int64{all.GetFromOffset(), all.GetNextOffset(), all.GetTail(), all.GetHead()})
	m, d := all.GetMessages()[0], held.GetDeliveries()[0]
	require.Equal(t, pushed.GetResults()[0].GetMessageId(), m.GetMessageId())
	require.Equal(t, []string{d.GetMessageId(), d.GetPartition(), d.GetContentType(), d.GetClientId()},
		[]string{m.GetMessageId(), m.GetPartition(), m.GetContentType(), m.GetClientId()})
	require.Equal(t, d.GetHeaders(), m.GetHeaders())
	require.Equal(t, d.GetCreatedAt().AsTime(), m.GetCreatedAt().AsTime())
	for name, c := range map[string]struct {
		req  *queuev1.PeekMessagesRequest
		want []string
	}{
		"limit":     {&queuev1.PeekMessagesRequest{From: "1", Limit: 1}, []string{`2`}},
		"partition": {&queuev1.PeekMessagesRequest{Partition: "p", From: "1"}, []string{`3`}},
		"latest":    {&queuev1.PeekMessagesRequest{From: "latest", Limit: 2}, []string{`2`, `3`}},
		"above":     {&queuev1.PeekMessagesRequest{From: "99"}, nil},
		"bytes":     {&queuev1.PeekMessagesRequest{MaxBytes: 1}, []string{`{ "x" : 1 }`}},
		"shard":     {&queuev1.PeekMessagesRequest{Shard: new(int32(0)), From: "earliest", Limit: 1}, []string{`{ "x" : 1 }`}},
	} {
		c.req.Queue = q
		got, err := k.PeekMessages(t.Context(), c.req)
		require.NoError(t, err, name)
		require.Equal(t, c.want, peeked(got), name)
	}
	_, err = k.PeekMessages(t.Context(), &queuev1.PeekMessagesRequest{Queue: q, Shard: new(int32(1))})
	require.Equal(t, "OUT_OF_RANGE", Code(err), "%v", err)
	_, err = k.PeekMessages(t.Context(), &queuev1.PeekMessagesRequest{Queue: k.name("nobody")})
	require.Equal(t, "QUEUE_NOT_FOUND", Code(err), "%v", err)

	after, err := k.GetQueue(t.Context(), &queuev1.GetQueueRequest{Queue: q})
	require.NoError(t, err)
	require.Equal(t, before.GetGroups()[0].String(), after.GetGroups()[0].String())
	ackAll(t, k, q, held)
}

func peeked(r *queuev1.PeekMessagesResponse) []string {
	var out []string
	for _, m := range r.GetMessages() {
		out = append(out, string(m.GetPayload()))
	}
	return out
}

func trace(t *testing.T, k kit) {
	q := k.name("trace")
	first := item("p", `1`)
	first.ClientId = "c"
	pushed := push(t, k, q, first, item("p", `2`), item("r", `3`)).GetResults()
	held := pop(t, k, q, 1)
	lookup := func(req *queuev1.LookupMessageRequest) (*queuev1.LookupMessageResponse, error) {
		req.Queue, req.Trace = q, true
		return k.LookupMessage(t.Context(), req)
	}
	one := func(i int) *queuev1.MessageTrace {
		t.Helper()
		found, err := lookup(&queuev1.LookupMessageRequest{MessageId: pushed[i].GetMessageId()})
		require.NoError(t, err)
		require.Equal(t, pushed[i].GetMessageId(), found.GetMessageId())
		require.Len(t, found.GetTraces(), 1)
		require.Equal(t, "default", found.GetTraces()[0].GetGroup())
		return found.GetTraces()[0]
	}

	require.Equal(t, queuev1.TraceState_TRACE_STATE_LEASED, one(0).GetState())
	require.EqualValues(t, 1, one(0).GetAttempt())
	require.Equal(t, queuev1.TraceState_TRACE_STATE_BLOCKED, one(1).GetState())
	require.Equal(t, pushed[0].GetMessageId(), one(1).GetBlockedBy())
	require.Equal(t, queuev1.TraceState_TRACE_STATE_READY, one(2).GetState())
	ackAll(t, k, q, held)
	byName, err := lookup(&queuev1.LookupMessageRequest{Partition: "p", ClientId: "c", Group: "default"})
	require.NoError(t, err)
	require.Equal(t, queuev1.TraceState_TRACE_STATE_SETTLED, byName.GetTraces()[0].GetState())
	held, err = k.Pop(t.Context(), &queuev1.PopRequest{Queue: q, Partition: "p"})
	require.NoError(t, err)
	require.Equal(t, pushed[1].GetMessageId(), held.GetDeliveries()[0].GetMessageId())
	_, err = k.Ack(t.Context(), &queuev1.AckRequest{Queue: q, Lease: held.GetLease(), Settlements: []*queuev1.Settlement{
		{MessageId: pushed[1].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_REJECT, Reason: "never"},
	}})
	require.NoError(t, err)
	dead := one(1)
	require.Equal(t, queuev1.TraceState_TRACE_STATE_DEAD_LETTERED, dead.GetState())
	require.Equal(t, "never", dead.GetDeadLetterReason())
	letter, err := k.GetDeadLetter(t.Context(), &queuev1.GetDeadLetterRequest{Queue: q, Id: dead.GetDeadLetterId()})
	require.NoError(t, err)
	require.Equal(t, pushed[1].GetMessageId(), letter.GetDeadLetter().GetMessageId())
	_, err = lookup(&queuev1.LookupMessageRequest{MessageId: pushed[0].GetMessageId(), Group: "nobody"})
	require.Equal(t, "GROUP_NOT_FOUND", Code(err), "%v", err)
}
