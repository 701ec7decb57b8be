package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/store"
)

// delete deletes a message of the queue "q" as another dispatcher does: nothing here is told.
func (n *node) delete(messageID string) {
	n.t.Helper()
	id, err := message.ParseID(messageID)
	require.NoError(n.t, err)
	_, err = n.control.DeleteMessage(n.t.Context(), admin(), "q", store.MessageName{ID: &id})
	require.NoError(n.t, err)
}

func TestAMessageDeletedElsewhereIsNotHandedOutThoughItIsInMemoryHere(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	pushed := b.push("q", item("a", "0"), item("a", "1"), item("b", "2"))
	b.ackAll("q", b.pop(&queuev1.PopRequest{Queue: "q", Group: "g"}).GetLease()) // the rest is listed in b's view

	a.delete(pushed[1].GetMessageId())

	require.Equal(t, []string{"2"}, payloads(b.pop(&queuev1.PopRequest{Queue: "q", Group: "g", Batch: 9})))
	start := &queuev1.GroupOptions{Start: "earliest"}
	require.Equal(t, []string{"0", "2"}, payloads(b.pop(&queuev1.PopRequest{Queue: "q", Group: "new", GroupOptions: start, Batch: 9})))
	a.seek("", earliest())
	require.Equal(t, []string{"0", "2"}, payloads(b.pop(&queuev1.PopRequest{Queue: "q", Group: "g", Batch: 9, Wait: seconds(9)})))
}

func TestAConsumerOfADeletedMessageIsToldThatItIsSettledAndKeepsTheOthersOfItsLease(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	b.push("q", item("a", "0"), item("a", "1"), item("a", "2"))
	held := b.pop(&queuev1.PopRequest{Queue: "q", Group: "g", Batch: 9})
	id := func(i int) string { return held.GetDeliveries()[i].GetMessageId() }

	a.delete(id(1))
	resp, err := b.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{
		{MessageId: id(1), Action: queuev1.AckAction_ACK_ACTION_ACK}, {MessageId: id(0), Action: queuev1.AckAction_ACK_ACTION_ACK},
	}})
	require.NoError(t, err)
	_, err = b.Renew(t.Context(), ten, &queuev1.RenewRequest{Queue: "q", Lease: held.GetLease()})
	require.NoError(t, err, "the lease goes on")
	a.delete(id(2))

	require.Equal(t, queuev1.AckStatus_ACK_STATUS_ALREADY_SETTLED, resp.GetResults()[0].GetStatus())
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, resp.GetResults()[1].GetStatus())
	_, err = b.Renew(t.Context(), ten, &queuev1.RenewRequest{Queue: "q", Lease: held.GetLease()})
	require.ErrorIs(t, err, engine.ErrStaleEpoch, "nothing of it is left")
}

func TestAPartitionThatADeleteFreesIsServedToAPopThatWaits(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	pushed := b.push("q", item("a", "0"), item("a", "1"))
	held := b.pop(&queuev1.PopRequest{Queue: "q", Group: "g"})
	_, err := b.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{
		{MessageId: pushed[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_NACK, Delay: seconds(600)},
	}})
	require.NoError(t, err)
	parked := b.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Group: "g", Wait: seconds(30)})
	b.awaitParked(1)

	a.delete(pushed[0].GetMessageId())

	require.Equal(t, []string{"1"}, payloads(<-parked))
}

func TestAReaderOfTheLogIsNotGivenWhatWasDeletedAndToldOfNoGap(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	id, _ := a.locate(queue.Latest)
	pushed := b.push("q", item("p", "0"), item("p", "1"), item("p", "2"), item("p", "3"))
	before, err := b.ReadLog(t.Context(), ten, "q", id, 0, 0)
	require.NoError(t, err)
	require.Len(t, before.GetMessages(), 4, "they are in b's memory")

	for _, i := range []int{0, 1, 3} {
		a.delete(pushed[i].GetMessageId())
	}
	page, err := b.ReadLog(t.Context(), ten, "q", id, 0, 0)
	require.NoError(t, err)
	last, err := b.ReadLog(t.Context(), ten, "q", id, 0, 3)
	require.NoError(t, err)
	f, err := b.Follow(t.Context(), ten, "q", id, []message.Offset{0})
	require.NoError(t, err)
	defer f.Close()
	tail, err := f.Page(t.Context(), 0, 0)
	require.NoError(t, err)

	require.Len(t, page.GetMessages(), 1)
	require.Equal(t, "2", string(page.GetMessages()[0].GetPayload()))
	require.Equal(t, []int64{4, 4}, []int64{page.GetNext(), last.GetNext()})
	require.Empty(t, last.GetMessages())
	require.Zero(t, page.GetTrimmed()+last.GetTrimmed(), "it is no gap of retention")
	require.Equal(t, page.GetMessages()[0].GetMessageId(), tail.GetMessages()[0].GetMessageId())
	require.Len(t, tail.GetMessages(), 1)
}

func TestADeletedMessageIsSettledByItsNamesToo(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	named := item("a", "0")
	named.ClientId = "order"
	pushed := b.push("q", named)
	b.pop(&queuev1.PopRequest{Queue: "q"})

	a.delete(pushed[0].GetMessageId())
	resp, err := b.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Settlements: []*queuev1.Settlement{
		{MessageId: pushed[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_ACK},
		{Partition: "a", ClientId: "order", Action: queuev1.AckAction_ACK_ACTION_ACK},
	}})

	require.NoError(t, err)
	for _, r := range resp.GetResults() {
		require.Equal(t, queuev1.AckStatus_ACK_STATUS_ALREADY_SETTLED, r.GetStatus(), r.GetError())
	}
}

func TestARepeatedPushOfACancelledMessageIsADuplicateAndBringsNothing(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	later := &queuev1.PushItem{Partition: "p", Payload: []byte("x"), IdempotencyKey: "k", Delay: seconds(3600)}
	push := func() *queuev1.PushResult {
		resp, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{later}})
		require.NoError(t, err)
		return resp.GetResults()[0]
	}
	first := push()
	id, err := message.ParsePendingID(first.GetMessageId())
	require.NoError(t, err)
	_, err = n.control.DeleteMessage(t.Context(), admin(), "q", store.MessageName{Pending: &id})
	require.NoError(t, err)

	again := push()

	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, again.GetStatus())
	require.Equal(t, first.GetMessageId(), again.GetMessageId())
	_, next, err := n.control.NextDue(t.Context(), time.Time{}, nil)
	require.NoError(t, err)
	require.Zero(t, next, "nothing waits")
	require.Empty(t, n.pop(&queuev1.PopRequest{Queue: "q"}).GetDeliveries())
}
