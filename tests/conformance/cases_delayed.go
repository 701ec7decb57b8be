package conformance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

func delayed(t *testing.T, k kit) {
	const wait = 700 * time.Millisecond
	q := k.name("delayed")
	soon, later := item("p", `"soon"`), item("p", `"later"`)
	soon.Delay, later.Delay = durationpb.New(wait), durationpb.New(24*time.Hour)
	later.ClientId = "l"
	pushed := push(t, k, q, soon, item("p", `"now"`), later).GetResults()

	waiting, err := k.LookupMessage(t.Context(), &queuev1.LookupMessageRequest{Queue: q, MessageId: pushed[2].GetMessageId()})
	require.NoError(t, err)
	shown, err := k.GetQueue(t.Context(), &queuev1.GetQueueRequest{Queue: q})
	require.NoError(t, err)
	first := pop(t, k, q, 10)
	ackAll(t, k, q, first)
	second, err := k.Pop(t.Context(), &queuev1.PopRequest{Queue: q, Batch: 10, Wait: durationpb.New(20 * time.Second)})
	require.NoError(t, err)
	came, err := k.LookupMessage(t.Context(), &queuev1.LookupMessageRequest{Queue: q, MessageId: pushed[0].GetMessageId()})
	require.NoError(t, err)

	require.Equal(t, `"now"`, string(first.GetDeliveries()[0].GetPayload()))
	require.Len(t, second.GetDeliveries(), 1)
	got := second.GetDeliveries()[0]
	require.Equal(t, `"soon"`, string(got.GetPayload()))
	require.False(t, got.GetCreatedAt().AsTime().Before(pushed[0].GetAvailableAt().AsTime()), "never early")
	require.Equal(t, pushed[2].GetMessageId(), waiting.GetMessageId())
	require.Equal(t, pushed[2].GetAvailableAt().AsTime(), waiting.GetAvailableAt().AsTime())
	require.Equal(t, `"later"`, string(waiting.GetPayload()))
	require.Equal(t, "l", waiting.GetClientId())
	require.GreaterOrEqual(t, shown.GetQueue().GetDelayed(), int64(1))
	require.Equal(t, got.GetMessageId(), came.GetMessageId(), "the pending id leads to its place")
	require.Nil(t, came.GetAvailableAt())
}

func delayedDuplicate(t *testing.T, k kit) {
	q := k.name("delayed-duplicate")
	it := item("p", `1`)
	it.Delay, it.IdempotencyKey = durationpb.New(time.Hour), "k"
	first := push(t, k, q, it).GetResults()[0]

	again, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: q, Items: []*queuev1.PushItem{it}})

	require.NoError(t, err)
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, again.GetResults()[0].GetStatus())
	require.Equal(t, first.GetMessageId(), again.GetResults()[0].GetMessageId())
	require.Equal(t, first.GetAvailableAt().AsTime(), again.GetResults()[0].GetAvailableAt().AsTime())
}

func deliverInThePast(t *testing.T, k kit) {
	q := k.name("past")
	past, zero := item("p", `1`), item("p", `2`)
	past.DeliverAt, zero.Delay = timestamppb.New(time.Unix(1, 0)), durationpb.New(0)

	pushed := push(t, k, q, past, zero).GetResults()

	for i, r := range pushed {
		require.EqualValues(t, i, r.GetOffset())
		require.Nil(t, r.GetAvailableAt())
	}
	require.Len(t, pop(t, k, q, 10).GetDeliveries(), 2)
}

func absurdTimes(t *testing.T, k kit) {
	q := k.name("absurd")
	negative, long, both := item("p", `1`), item("p", `2`), item("p", `3`)
	negative.Delay, long.Delay = durationpb.New(-time.Second), durationpb.New(367*24*time.Hour)
	both.Delay, both.DeliverAt = durationpb.New(time.Hour), timestamppb.New(time.Now().Add(time.Hour))

	resp, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: q, Items: []*queuev1.PushItem{negative, long, both, item("p", `4`)}})

	require.NoError(t, err)
	codes := make([]string, 0, 4)
	for _, r := range resp.GetResults() {
		codes = append(codes, r.GetError().GetCode())
	}
	require.Equal(t, []string{"OUT_OF_RANGE", "OUT_OF_RANGE", "CONFLICTING_FIELDS", ""}, codes)
	require.Equal(t, `4`, string(pop(t, k, q, 10).GetDeliveries()[0].GetPayload()))
}
