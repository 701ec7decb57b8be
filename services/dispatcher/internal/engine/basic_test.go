package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/engine"
)

func TestPushedMessagesArePoppedInOrderAndAckedForGood(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})

	n.push("q", item("a", "1"), item("b", "2"), item("a", "3"))
	first := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})
	none := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})
	n.ackAll("q", first.GetLease())
	after := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})

	require.Equal(t, []string{"1", "2", "3"}, payloads(first))
	require.Empty(t, none.GetLease())
	require.Empty(t, after.GetLease())
}

func TestReleasedMessagesComeBackUncharged(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})

	n.push("q", item("a", "1"), item("a", "2"))
	first := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})
	released, err := n.Release(t.Context(), ten, &queuev1.ReleaseRequest{Queue: "q", Lease: first.GetLease()})
	require.NoError(t, err)
	again := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})

	require.Equal(t, int32(2), released.GetReleased())
	require.Equal(t, []string{"1", "2"}, payloads(again))
	require.Equal(t, int32(1), again.GetDeliveries()[0].GetAttempt())
}

func TestAStaleLeaseIsRefusedAndChangesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("a", "1"))
	first := n.pop(&queuev1.PopRequest{Queue: "q"})
	_, err := n.Release(t.Context(), ten, &queuev1.ReleaseRequest{Queue: "q", Lease: first.GetLease()})
	require.NoError(t, err)

	_, ackErr := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: first.GetLease(), AckRest: true})
	_, renewErr := n.Renew(t.Context(), ten, &queuev1.RenewRequest{Queue: "q", Lease: first.GetLease()})
	again := n.pop(&queuev1.PopRequest{Queue: "q"})

	require.ErrorIs(t, ackErr, engine.ErrStaleEpoch)
	require.ErrorIs(t, renewErr, engine.ErrStaleEpoch)
	require.Equal(t, []string{"1"}, payloads(again))
}

func TestARepeatedAckIsAlreadySettled(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("a", "1"), item("b", "2"))
	first := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 2})
	ack := &queuev1.AckRequest{Queue: "q", Lease: first.GetLease(), Settlements: []*queuev1.Settlement{
		{MessageId: first.GetDeliveries()[0].GetMessageId()},
	}}

	one, err := n.Ack(t.Context(), ten, ack)
	require.NoError(t, err)
	two, err := n.Ack(t.Context(), ten, ack)
	require.NoError(t, err)

	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, one.GetResults()[0].GetStatus())
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_ALREADY_SETTLED, two.GetResults()[0].GetStatus())
}

func TestAckAndNextPopOfOneConsumerAreOneCommit(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	for _, p := range []string{"1", "2", "3"} {
		n.push("q", item("a", p))
	}
	first := n.pop(&queuev1.PopRequest{Queue: "q"})
	before := n.metric("work_commits_total")

	second := n.pop(&queuev1.PopRequest{Queue: "q", Settle: &queuev1.AckRequest{Lease: first.GetLease(), AckRest: true}})

	require.Equal(t, []string{"2"}, payloads(second))
	require.InDelta(t, 1, n.metric("work_commits_total")-before, 0)
}

func TestNackedMessageReturnsInOrder(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("a", "1"), item("a", "2"), item("b", "3"))
	first := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})

	resp, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: first.GetLease(), Settlements: []*queuev1.Settlement{{
		MessageId: first.GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_NACK, Delay: seconds(0.2), Reason: "no",
	}}})
	require.NoError(t, err)
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, resp.GetResults()[0].GetStatus())
	again := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10, Wait: seconds(5)})

	require.Equal(t, []string{"1", "2"}, payloads(again))
	require.Equal(t, int32(2), again.GetDeliveries()[0].GetAttempt())
	require.Equal(t, int32(1), again.GetDeliveries()[1].GetAttempt())
}

func TestLastFailureIsADeadLetterWithItsMessage(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"max_attempts": 1}`)
	n.push("q", item("a", "bad"), item("a", "good"))
	first := n.pop(&queuev1.PopRequest{Queue: "q"})

	resp, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: first.GetLease(), Settlements: []*queuev1.Settlement{{
		MessageId: first.GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_NACK, Reason: "broken",
	}}})
	require.NoError(t, err)
	letters, err := n.control.ListDeadLetters(t.Context(), ten, "q", letterFilter())
	require.NoError(t, err)
	next := n.pop(&queuev1.PopRequest{Queue: "q"})

	require.Equal(t, queuev1.AckStatus_ACK_STATUS_DEAD_LETTERED, resp.GetResults()[0].GetStatus())
	require.Len(t, letters, 1)
	require.Equal(t, "broken", letters[0].LastError)
	require.Equal(t, []string{"good"}, payloads(next))
}

func TestAnIdempotencyKeyIsAcceptedOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	keyed := func(payload string) *queuev1.PushItem {
		return &queuev1.PushItem{Partition: "a", Payload: []byte(payload), IdempotencyKey: "k"}
	}

	one, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{keyed("1"), keyed("1"), keyed("2"), item("a", "3")}})
	require.NoError(t, err)
	two, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{keyed("1")}})
	require.NoError(t, err)

	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_QUEUED, one.GetResults()[0].GetStatus())
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, one.GetResults()[1].GetStatus())
	require.Equal(t, "IDEMPOTENCY_KEY_REUSED", one.GetResults()[2].GetError().GetCode())
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_QUEUED, one.GetResults()[3].GetStatus())
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, two.GetResults()[0].GetStatus())
	require.Equal(t, one.GetResults()[0].GetMessageId(), two.GetResults()[0].GetMessageId())
}

func TestARepeatedRequestIsAnsweredAsTheFirst(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"shards": 1}`)
	req := func(payload string) *queuev1.PushRequest {
		return &queuev1.PushRequest{Queue: "q", IdempotencyKey: "r", Items: []*queuev1.PushItem{item("a", payload), item("", ""), item("b", "2")}}
	}

	one, err := n.Push(t.Context(), ten, req("1"))
	require.NoError(t, err)
	two, err := n.Push(t.Context(), ten, req("1"))
	require.NoError(t, err)
	_, other := n.Push(t.Context(), ten, req("x"))

	require.False(t, one.GetReplayed())
	require.True(t, two.GetReplayed())
	for i := range one.GetResults() {
		require.Equal(t, one.GetResults()[i].String(), two.GetResults()[i].String())
	}
	require.Error(t, other)
}

func TestABadItemHarmsNoOther(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})

	resp, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{
		item("a", "1"), item("nul\x00", "2"), item("a", "3"),
	}})
	require.NoError(t, err)
	popped := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})

	require.Equal(t, "NAME_HAS_NUL", resp.GetResults()[1].GetError().GetCode())
	require.Equal(t, []string{"1", "3"}, payloads(popped))
}
