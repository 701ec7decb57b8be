package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/conformance"
	"postrider.dev/tests/fleet"
)

func TestATraceOnOneHostTellsWhatBecameOfAMessageThroughTheOther(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Configure(t.Context(), "q", &queuev1.QueueOptions{MaxAttempts: new(int32(2))})
	require.NoError(t, err)
	_, err = a.CreateGroup(t.Context(), "q", "g", nil)
	require.NoError(t, err)
	pushed, err := a.Push(t.Context(), "q", message("p", "0"), message("p", "1"))
	require.NoError(t, err)
	first, second := pushed[0].MessageID, pushed[1].MessageID
	trace := func(id string) *queuev1.MessageTrace {
		t.Helper()
		got, err := b.Trace(t.Context(), "q", id, "g")
		require.NoError(t, err)
		require.Len(t, got.GetTraces(), 1)
		return got.GetTraces()[0]
	}

	require.Equal(t, queuev1.TraceState_TRACE_STATE_READY, trace(first).GetState())

	held := mustPop(t, a, "q", postrider.PopOptions{Group: "g", Consumer: "anna"})
	leased := trace(first)
	require.Equal(t, queuev1.TraceState_TRACE_STATE_LEASED, leased.GetState())
	require.Equal(t, "anna", leased.GetConsumer())
	require.EqualValues(t, 1, leased.GetAttempt())
	require.NotNil(t, leased.GetLeaseExpiresAt())
	require.Equal(t, queuev1.TraceState_TRACE_STATE_BLOCKED, trace(second).GetState())
	require.Equal(t, first, trace(second).GetBlockedBy())

	_, err = held.Nack(t.Context(), held.Deliveries[0], time.Hour, "no luck")
	require.NoError(t, err)
	waits := trace(first)
	require.Equal(t, queuev1.TraceState_TRACE_STATE_WAITING, waits.GetState())
	require.EqualValues(t, 1, waits.GetFailures())
	require.Equal(t, "no luck", waits.GetLastError())
	require.NotNil(t, waits.GetAvailableAt())
	require.Equal(t, first, trace(second).GetBlockedBy())
}

func TestATracedQueueTellsOnOneHostWhatHappenedThroughTheOther(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Configure(t.Context(), "q", &queuev1.QueueOptions{Trace: new(true)})
	require.NoError(t, err)
	pushed, err := b.Push(t.Context(), "q", message("p", "0"))
	require.NoError(t, err)
	id := pushed[0].MessageID

	held := mustPop(t, a, "q", postrider.PopOptions{Group: "g", Consumer: "anna"})
	_, err = held.Nack(t.Context(), held.Deliveries[0], time.Millisecond, "no luck")
	require.NoError(t, err)
	again := mustPop(t, b, "q", postrider.PopOptions{Group: "g", Consumer: "bert"})
	_, err = again.Ack(t.Context(), again.Deliveries...)
	require.NoError(t, err)

	events, next, err := b.TraceEvents(t.Context(), "q", id, "g", "")
	require.NoError(t, err)
	require.Empty(t, next)
	require.Equal(t, []queuev1.TraceEventKind{
		queuev1.TraceEventKind_TRACE_EVENT_KIND_PUSHED, queuev1.TraceEventKind_TRACE_EVENT_KIND_DELIVERED,
		queuev1.TraceEventKind_TRACE_EVENT_KIND_NACKED, queuev1.TraceEventKind_TRACE_EVENT_KIND_DELIVERED, queuev1.TraceEventKind_TRACE_EVENT_KIND_ACKED,
	}, conformance.KindsOf(events))
	require.Equal(t, []string{"anna", "bert"}, []string{events[1].GetConsumer(), events[3].GetConsumer()})
	require.Equal(t, []int32{1, 2}, []int32{events[1].GetAttempt(), events[3].GetAttempt()})
	require.Equal(t, "no luck", events[2].GetReason())
	require.Equal(t, events[1].GetLeaseEpoch(), events[2].GetLeaseEpoch())
	require.Equal(t, events[2].GetAt().AsTime().Add(time.Millisecond), events[2].GetUntil().AsTime())
}

func TestKillingADispatcherLeavesEveryDeliveryAndEveryAckRecordedOnce(t *testing.T) {
	t.Parallel()
	const total = 400
	p := fleet.StartProcesses(t, &binaries, 2)
	a, b := p.Client(t, 0, 1), p.Client(t, 1)
	_, err := b.Configure(t.Context(), "q", &queuev1.QueueOptions{Trace: new(true)})
	require.NoError(t, err)
	messages := make([]postrider.Message, total)
	for i := range messages {
		messages[i] = message(partitions(16)[i%16], "x")
	}
	pushed, err := b.Push(t.Context(), "q", messages...)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()

	for n, left := 0, int64(total); left > 0; n++ {
		require.NoError(t, ctx.Err())
		client := a
		if n%2 == 1 {
			client = b
		}
		lease, err := client.Pop(ctx, "q", postrider.PopOptions{Batch: 7, Wait: time.Second, Lease: time.Second})
		if err != nil || lease == nil {
			continue // of the dead one, or its leases have yet to run out
		}
		_, _ = lease.Ack(ctx, lease.Deliveries...) // what of it is not settled comes again
		if n == total/28 {
			p.Hosts[0].Dispatcher.Kill()
		}
		shown, err := b.Queue(ctx, "q")
		require.NoError(t, err)
		left = shown.GetGroups()[0].GetDepth()
	}

	for _, m := range pushed {
		events, next, err := b.TraceEvents(ctx, "q", m.MessageID, "", "")
		require.NoError(t, err)
		require.Empty(t, next)
		kinds := conformance.KindsOf(events)
		require.Equal(t, queuev1.TraceEventKind_TRACE_EVENT_KIND_PUSHED, kinds[0])
		held := int64(0)
		for i, e := range events[1:] {
			if e.GetKind() == queuev1.TraceEventKind_TRACE_EVENT_KIND_DELIVERED {
				require.Zero(t, held, "%v", kinds)
				held = e.GetLeaseEpoch()
				continue
			}
			require.Equal(t, held, e.GetLeaseEpoch(), "%v", kinds)
			held = 0
			require.Equal(t, i == len(events)-2, e.GetKind() == queuev1.TraceEventKind_TRACE_EVENT_KIND_ACKED, "acked once, and last: %v", kinds)
		}
		require.Equal(t, queuev1.TraceEventKind_TRACE_EVENT_KIND_ACKED, kinds[len(kinds)-1])
	}
}
