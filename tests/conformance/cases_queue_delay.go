package conformance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

func queueDelay(t *testing.T, k kit) {
	const long, short = 15 * time.Minute, time.Second
	q := k.name("queue-delay")
	configure := func(delay time.Duration) (*queuev1.ConfigureQueueResponse, error) {
		return k.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Queue: q, Options: &queuev1.QueueOptions{Delay: durationpb.New(delay)}})
	}
	done, err := configure(long)
	require.NoError(t, err)
	require.Equal(t, long, done.GetQueue().GetOptions().GetDelay().AsDuration())
	for _, delay := range []time.Duration{-time.Nanosecond, long + time.Nanosecond} {
		_, err = configure(delay)
		require.Equal(t, "OUT_OF_RANGE", Code(err), "%v", err)
	}
	first := push(t, k, q, item("p", `1`)).GetResults()[0]

	none, err := k.Pop(t.Context(), &queuev1.PopRequest{Queue: q})
	require.NoError(t, err)
	require.Empty(t, none.GetDeliveries())
	seen, err := k.PeekMessages(t.Context(), &queuev1.PeekMessagesRequest{Queue: q})
	require.NoError(t, err)
	require.Equal(t, []string{`1`}, peeked(seen), "the log has it")
	found, err := k.LookupMessage(t.Context(), &queuev1.LookupMessageRequest{Queue: q, MessageId: first.GetMessageId(), Trace: true})
	require.NoError(t, err)
	require.Equal(t, queuev1.TraceState_TRACE_STATE_WAITING, found.GetTraces()[0].GetState())
	require.Equal(t, found.GetCreatedAt().AsTime().Add(long), found.GetTraces()[0].GetAvailableAt().AsTime())

	_, err = configure(short)
	require.NoError(t, err)
	push(t, k, q, item("p", `2`))
	var came []string
	for len(came) < 2 {
		got, err := k.Pop(t.Context(), &queuev1.PopRequest{Queue: q, Batch: 9, Wait: durationpb.New(20 * time.Second)})
		require.NoError(t, err)
		require.NotEmpty(t, got.GetDeliveries())
		granted := got.GetLeaseExpiresAt().AsTime().Add(-got.GetLeaseDuration().AsDuration())
		for _, d := range got.GetDeliveries() {
			require.GreaterOrEqual(t, granted.Sub(d.GetCreatedAt().AsTime()), short, "never early")
		}
		came = append(came, payloadsOf(got)...)
		ackAll(t, k, q, got)
	}
	require.Equal(t, []string{`1`, `2`}, came)
}
