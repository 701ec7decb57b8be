package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
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
