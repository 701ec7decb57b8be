package conformance

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// RunStored runs, over both surfaces, the cases that need a store which keeps, trims and encrypts: a dispatcher in memory has none. Encryption keys are
// configured, and retention is quick.
func RunStored(t *testing.T, target Target) {
	t.Helper()
	run(t, target, []testCase{
		{"a full queue refuses a push whole and takes again once there is room", fullQueue},
		{"a message beyond the queue's limit is refused alone", largeMessage},
		{"what retention took is told once, and the log begins behind it", retentionTells},
		{"an encrypted queue answers as any other", encryptedQueue},
		{"a queue's key is rotated, and what was there is read", rotatedKey},
		{"whether a queue is encrypted is fixed when it is made", encryptionFixed},
	})
}

// RunBuffering puts the target's fleet into maintenance and runs the cases of a push that is kept on disk. Every dispatcher has a spool.
func RunBuffering(t *testing.T, target Target) {
	t.Helper()
	admin := target.REST(target.Key)
	warm := func(queue string) { // while pushes are diverted, only queues that are known take them
		_, err := admin.Push(t.Context(), &queuev1.PushRequest{Queue: queue, Items: []*queuev1.PushItem{item("p", `0`)}})
		require.NoError(t, err)
	}
	warm("buffered-rest")
	warm("buffered-grpc")
	_, err := admin.SetMode(t.Context(), &adminv1.SetModeRequest{Mode: "maintenance", Enabled: new(true), Reason: "conformance"})
	require.NoError(t, err)
	awaitSpools(t, admin, "buffering")
	run(t, target, []testCase{{"a push in maintenance is buffered, under a pending id", bufferedPush}, {"a push that requires a commit is refused in maintenance", requireCommitted}})
	t.Cleanup(func() { // the cases are parallel: this runs behind them
		_, err := admin.SetMode(lasting(t), &adminv1.SetModeRequest{Mode: "maintenance", Enabled: new(false)})
		require.NoError(t, err)
		awaitSpools(t, admin, "idle")
		for _, queue := range []string{"buffered-rest", "buffered-grpc"} {
			got, err := admin.Pop(lasting(t), &queuev1.PopRequest{Queue: queue, Batch: 10})
			require.NoError(t, err)
			require.Equal(t, []string{`0`, `{ "n" : 1 }`, `2`}, payloadsOf(got), "all that was accepted, once, in its order, and nothing that was refused")
		}
	})
}

// lasting outlives the test's own context, which has ended when what it left is cleaned up.
func lasting(t *testing.T) context.Context {
	t.Helper()
	return context.WithoutCancel(t.Context())
}

func awaitSpools(t *testing.T, c Client, state string) {
	t.Helper()
	require.Eventually(t, func() bool {
		spools, err := c.GetSpool(lasting(t), &adminv1.GetSpoolRequest{})
		for _, s := range spools.GetSpools() {
			if s.GetState() != state {
				return false
			}
		}
		return err == nil && len(spools.GetSpools()) > 0
	}, time.Minute, 50*time.Millisecond)
}

func bufferedPush(t *testing.T, k kit) {
	q := "buffered-" + k.surface
	first := item("p", `{ "n" : 1 }`)
	first.IdempotencyKey = "k"

	one, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: q, Items: []*queuev1.PushItem{first, item(strings.Repeat("x", 256), `"no"`)}})
	require.NoError(t, err)
	two, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: q, Items: []*queuev1.PushItem{item("p", `2`)}})
	require.NoError(t, err)
	again, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: q, Items: []*queuev1.PushItem{first}})
	require.NoError(t, err)

	for _, r := range []*queuev1.PushResult{one.GetResults()[0], two.GetResults()[0], again.GetResults()[0]} {
		require.Equal(t, queuev1.PushStatus_PUSH_STATUS_BUFFERED, r.GetStatus(), "%v", r)
		require.True(t, strings.HasPrefix(r.GetMessageId(), "p_"), "%v", r)
		require.Zero(t, r.GetOffset())
	}
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_FAILED, one.GetResults()[1].GetStatus(), "what is bad is told now")
}

func requireCommitted(t *testing.T, k kit) {
	_, err := k.Push(t.Context(), &queuev1.PushRequest{
		Queue: "buffered-" + k.surface, Items: []*queuev1.PushItem{item("p", `"no"`)}, Require: queuev1.PushRequire_PUSH_REQUIRE_COMMITTED,
	})

	refusedAs(t, err, "WOULD_BE_BUFFERED", http.StatusServiceUnavailable, codes.Unavailable)
}

// refusedAs checks the code, and the status of whichever surface it was.
func refusedAs(t *testing.T, err error, code string, status int, grpc codes.Code) {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, code, e.Code)
	require.True(t, e.HTTP == status || e.HTTP == 0 && e.GRPC == grpc, "%v", err)
}

func configure(t *testing.T, k kit, queue string, options *queuev1.QueueOptions) {
	t.Helper()
	_, err := k.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Queue: queue, Options: options})
	require.NoError(t, err)
}

func fullQueue(t *testing.T, k kit) {
	q := k.name("full")
	configure(t, k, q, &queuev1.QueueOptions{MaxQueueMessages: new(int64(2)), RetentionSettled: new(true)})
	push(t, k, q, item("p", `1`))

	_, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: q, Items: []*queuev1.PushItem{item("p", `2`), item("p", `3`)}})
	refusedAs(t, err, "QUEUE_FULL", http.StatusTooManyRequests, codes.ResourceExhausted)
	push(t, k, q, item("p", `4`))
	got := pop(t, k, q, 9)
	require.Equal(t, []string{`1`, `4`}, payloadsOf(got))
	ackAll(t, k, q, got)

	require.Eventually(t, func() bool {
		_, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: q, Items: []*queuev1.PushItem{item("p", `5`)}})
		return err == nil
	}, time.Minute, 50*time.Millisecond)
	require.Equal(t, []string{`5`}, payloadsOf(pop(t, k, q, 9)))
}

func largeMessage(t *testing.T, k kit) {
	q := k.name("large")
	configure(t, k, q, &queuev1.QueueOptions{MaxMessageBytes: new(int32(100))})

	got, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: q, Items: []*queuev1.PushItem{
		item("p", `"`+strings.Repeat("x", 99)+`"`), item("p", `"`+strings.Repeat("y", 90)+`"`),
	}})

	require.NoError(t, err)
	require.Equal(t, "MESSAGE_TOO_LARGE", got.GetResults()[0].GetError().GetCode())
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_QUEUED, got.GetResults()[1].GetStatus())
	require.Len(t, pop(t, k, q, 9).GetDeliveries(), 1)
}

func retentionTells(t *testing.T, k kit) {
	q := k.name("retention")
	configure(t, k, q, &queuev1.QueueOptions{Retention: durationpb.New(time.Second)})
	_, err := k.CreateGroup(t.Context(), &queuev1.CreateGroupRequest{Queue: q, Group: "default"})
	require.NoError(t, err)
	push(t, k, q, item("p", `"old"`))
	require.Eventually(t, func() bool { // something newer comes, and then the old one goes
		push(t, k, q, item("p", `"new"`))
		shown, err := k.GetQueue(t.Context(), &queuev1.GetQueueRequest{Queue: q})
		return err == nil && shown.GetQueue().GetDropped() > 0
	}, time.Minute, 100*time.Millisecond)

	first := pop(t, k, q, 1)
	second, err := k.Pop(t.Context(), &queuev1.PopRequest{Queue: q, Partition: "another", Batch: 1})

	require.NoError(t, err)
	require.Equal(t, []string{`"new"`}, payloadsOf(first))
	require.Len(t, first.GetTrimmed(), 1)
	require.Positive(t, first.GetTrimmed()[0].GetMessages())
	require.Positive(t, first.GetTrimmed()[0].GetFirstAvailable())
	require.LessOrEqual(t, first.GetTrimmed()[0].GetFirstAvailable(), first.GetDeliveries()[0].GetOffset())
	require.Empty(t, second.GetTrimmed(), "it is told once")
	events, err := k.Subscribe(t.Context(), &queuev1.SubscribeRequest{Queue: q, From: "earliest"}, 1)
	require.NoError(t, err)
	require.GreaterOrEqual(t, events[0].GetMessage().GetOffset()+events[0].GetGap().GetTo(), first.GetTrimmed()[0].GetFirstAvailable())
}

func encryptedQueue(t *testing.T, k kit) {
	q := k.name("secret")
	configure(t, k, q, &queuev1.QueueOptions{Encryption: new(true), MaxAttempts: new(int32(1))})
	named := item("p", `{ "big" : 12345678901234567890 }`)
	named.ClientId, named.IdempotencyKey, named.Headers = "order 7", "once", map[string]string{"h": "v"}

	pushed := push(t, k, q, named, item("r", `2`))
	again, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: q, Items: []*queuev1.PushItem{named}})
	require.NoError(t, err)
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, again.GetResults()[0].GetStatus())
	found, err := k.LookupMessage(t.Context(), &queuev1.LookupMessageRequest{Queue: q, Partition: "p", ClientId: "order 7"})
	require.NoError(t, err)
	require.Equal(t, pushed.GetResults()[0].GetMessageId(), found.GetMessageId())
	seen, err := k.PeekMessages(t.Context(), &queuev1.PeekMessagesRequest{Queue: q})
	require.NoError(t, err)
	require.Equal(t, []string{`{ "big" : 12345678901234567890 }`, `2`}, peeked(seen))
	got := pop(t, k, q, 9)
	require.ElementsMatch(t, []string{`{ "big" : 12345678901234567890 }`, `2`}, payloadsOf(got))
	_, err = k.Ack(t.Context(), &queuev1.AckRequest{Queue: q, Lease: got.GetLease(), AckRest: true, Settlements: []*queuev1.Settlement{
		{MessageId: pushed.GetResults()[1].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_REJECT, Reason: "told to"},
	}})
	require.NoError(t, err)
	letters, err := k.ListDeadLetters(t.Context(), &queuev1.ListDeadLettersRequest{Queue: q})
	require.NoError(t, err)
	require.Len(t, letters.GetDeadLetters(), 1)
	letter, err := k.GetDeadLetter(t.Context(), &queuev1.GetDeadLetterRequest{Queue: q, Id: letters.GetDeadLetters()[0].GetId()})
	require.NoError(t, err)
	require.Equal(t, `2`, string(letter.GetDeadLetter().GetPayload()))
	require.Equal(t, "told to", letter.GetDeadLetter().GetReason())
	_, err = k.ListPartitions(t.Context(), &queuev1.ListPartitionsRequest{Queue: q})
	refusedAs(t, err, "QUEUE_ENCRYPTED", http.StatusBadRequest, codes.FailedPrecondition)
}

func rotatedKey(t *testing.T, k kit) {
	q := k.name("rotated")
	configure(t, k, q, &queuev1.QueueOptions{Encryption: new(true)})
	push(t, k, q, item("p", `1`))
	first, err := k.RotateQueueKey(t.Context(), &queuev1.RotateQueueKeyRequest{Queue: q})
	require.NoError(t, err)
	push(t, k, q, item("p", `2`))
	second, err := k.RotateQueueKey(t.Context(), &queuev1.RotateQueueKeyRequest{Queue: q})
	require.NoError(t, err)
	push(t, k, q, item("p", `3`))

	require.Greater(t, second.GetKeyId(), first.GetKeyId())
	require.Equal(t, first.GetConfigVersion()+1, second.GetConfigVersion())
	require.Equal(t, []string{`1`, `2`, `3`}, payloadsOf(pop(t, k, q, 9)))
	plain := k.name("plain")
	push(t, k, plain, item("p", `1`))
	_, err = k.RotateQueueKey(t.Context(), &queuev1.RotateQueueKeyRequest{Queue: plain})
	refusedAs(t, err, "QUEUE_NOT_ENCRYPTED", http.StatusBadRequest, codes.FailedPrecondition)
	_, err = k.RotateQueueKey(t.Context(), &queuev1.RotateQueueKeyRequest{Queue: k.name("nobody")})
	refusedAs(t, err, "QUEUE_NOT_FOUND", http.StatusNotFound, codes.NotFound)
}

func encryptionFixed(t *testing.T, k kit) {
	q := k.name("clear")
	push(t, k, q, item("p", `1`))

	_, err := k.ConfigureQueue(t.Context(), &queuev1.ConfigureQueueRequest{Queue: q, Options: &queuev1.QueueOptions{Encryption: new(true)}})

	refusedAs(t, err, "OPTION_FIXED", http.StatusBadRequest, codes.FailedPrecondition)
	push(t, k, q, item("p", `2`))
}
