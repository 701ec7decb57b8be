package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

func traceEvents(t *testing.T, k kit) {
	q := k.name("events")
	_, err := k.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Queue: q, Options: &queuev1.QueueOptions{Trace: new(true)}})
	require.NoError(t, err)
	pushed := push(t, k, q, item("p", `1`), item("r", `2`)).GetResults()
	ackAll(t, k, q, pop(t, k, q, 1))
	held := pop(t, k, q, 1)
	_, err = k.Ack(t.Context(), &queuev1.AckRequest{Queue: q, Lease: held.GetLease(), Settlements: []*queuev1.Settlement{
		{MessageId: pushed[1].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_REJECT, Reason: "never"},
	}})
	require.NoError(t, err)
	events := func(i int) []*queuev1.TraceEvent {
		t.Helper()
		found, err := k.LookupMessage(t.Context(), &queuev1.LookupMessageRequest{Queue: q, MessageId: pushed[i].GetMessageId(), Trace: true})
		require.NoError(t, err)
		return found.GetTraceEvents()
	}

	require.Equal(t, []queuev1.TraceEventKind{
		queuev1.TraceEventKind_TRACE_EVENT_KIND_PUSHED, queuev1.TraceEventKind_TRACE_EVENT_KIND_DELIVERED, queuev1.TraceEventKind_TRACE_EVENT_KIND_ACKED,
	}, KindsOf(events(0)))
	rejected := events(1)
	require.Equal(t, []queuev1.TraceEventKind{
		queuev1.TraceEventKind_TRACE_EVENT_KIND_PUSHED, queuev1.TraceEventKind_TRACE_EVENT_KIND_DELIVERED,
		queuev1.TraceEventKind_TRACE_EVENT_KIND_REJECTED, queuev1.TraceEventKind_TRACE_EVENT_KIND_DEAD_LETTERED,
	}, KindsOf(rejected))
	require.Equal(t, "never", rejected[2].GetReason())
	for i, e := range rejected {
		require.NotNil(t, e.GetAt())
		require.Equal(t, i > 0, e.GetGroup() == "default")
	}
}

// KindsOf are the kinds of events, in their order.
func KindsOf(events []*queuev1.TraceEvent) []queuev1.TraceEventKind {
	var kinds []queuev1.TraceEventKind
	for _, e := range events {
		kinds = append(kinds, e.GetKind())
	}
	return kinds
}
