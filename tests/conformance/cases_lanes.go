package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

func lanes(t *testing.T, k kit) {
	q := k.name("lanes")
	made, err := k.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Queue: q, Options: &queuev1.QueueOptions{Lanes: new(int32(3))}})
	require.NoError(t, err)
	require.EqualValues(t, 3, made.GetQueue().GetOptions().GetLanes())
	in := func(priority int32, payload string) *queuev1.PushItem {
		it := item("p", payload)
		it.Priority = priority
		return it
	}
	push(t, k, q, in(0, `"low"`), in(2, `"high"`), in(1, `"mid"`), in(2, `"high too"`))
	refused, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: q, Items: []*queuev1.PushItem{in(3, `1`), in(0, `"low too"`), in(-1, `1`), in(10, `1`)}})
	require.NoError(t, err)

	first := pop(t, k, q, 2)
	second := pop(t, k, q, 9)

	require.Equal(t, []string{`"high"`, `"high too"`}, payloadsOf(first))
	require.Equal(t, []string{`"mid"`, `"low"`, `"low too"`}, payloadsOf(second), "another lane of the partition is not blocked")
	require.EqualValues(t, 2, first.GetDeliveries()[1].GetPriority())
	require.EqualValues(t, 1, second.GetDeliveries()[0].GetPriority())
	for i, code := range []string{"LANE_UNKNOWN", "", "OUT_OF_RANGE", "OUT_OF_RANGE"} {
		require.Equal(t, code, refused.GetResults()[i].GetError().GetCode())
	}
	seen, err := k.PeekMessages(t.Context(), &queuev1.PeekMessagesRequest{Queue: q, Partition: "p", Priority: new(int32(2))})
	require.NoError(t, err)
	require.Equal(t, []string{`"high"`, `"high too"`}, peeked(seen))
	require.EqualValues(t, 2, seen.GetMessages()[0].GetPriority())
	_, err = k.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Queue: q, Options: &queuev1.QueueOptions{Lanes: new(int32(2))}})
	require.Equal(t, "OPTION_FIXED", Code(err), "%v", err)
	_, err = k.PeekMessages(t.Context(), &queuev1.PeekMessagesRequest{Queue: q, Priority: new(int32(1))})
	require.Equal(t, "CONFLICTING_FIELDS", Code(err), "%v", err)
	ackAll(t, k, q, second)
	ackAll(t, k, q, first)
}
