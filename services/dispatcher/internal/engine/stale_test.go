package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/engine"
)

// TestARefusalIsNeverGivenFromAStaleView has one engine act while the view of the other stands still.
func TestARefusalIsNeverGivenFromAStaleView(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	for range 10 {
		a.push("q", item("a", "1"), item("b", "2"))
		require.Empty(t, b.pop(&queuev1.PopRequest{Queue: "q", Partition: "none"}).GetLease()) // b has a view now
		held := a.pop(&queuev1.PopRequest{Queue: "q", Batch: 2})                               // and it is stale now

		_, err := b.Renew(t.Context(), ten, &queuev1.RenewRequest{Queue: "q", Lease: held.GetLease()})
		require.NoError(t, err)
		one, err := b.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{
			{MessageId: held.GetDeliveries()[0].GetMessageId()},
		}})
		require.NoError(t, err)
		require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, one.GetResults()[0].GetStatus())

		again, err := a.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{
			{MessageId: held.GetDeliveries()[0].GetMessageId()}, {MessageId: held.GetDeliveries()[1].GetMessageId()},
		}})
		require.NoError(t, err)
		require.Equal(t, queuev1.AckStatus_ACK_STATUS_ALREADY_SETTLED, again.GetResults()[0].GetStatus())
		require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, again.GetResults()[1].GetStatus())

		_, err = b.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), AckRest: true})
		require.ErrorIs(t, err, engine.ErrStaleEpoch)
	}
}

func TestAnotherTenantsTokenNamesNoLease(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("a", "1"))
	held := n.pop(&queuev1.PopRequest{Queue: "q"})
	_, err := n.Push(t.Context(), "other", &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item("a", "x")}})
	require.NoError(t, err)

	_, foreign := n.Ack(t.Context(), "other", &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), AckRest: true})
	own, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), AckRest: true})

	require.ErrorIs(t, foreign, engine.ErrStaleEpoch)
	require.NoError(t, err)
	require.Equal(t, int32(1), own.GetRestAcked())
}

func TestATokenIsGoodOnAnEngineThatNeverSawTheGroup(t *testing.T) {
	t.Parallel()
	url := database(t)
	a := newNode(t, url, nodeOptions{})
	a.push("q", item("a", "1"))
	held := a.pop(&queuev1.PopRequest{Queue: "q"})
	a.stop()
	b := newNode(t, url, nodeOptions{})

	acked, err := b.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), AckRest: true})

	require.NoError(t, err)
	require.Equal(t, int32(1), acked.GetRestAcked())
}

func TestAMessageIsSettledByItsProducersName(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	named := func(id string) *queuev1.PushItem {
		return &queuev1.PushItem{Partition: "a", Payload: []byte(id), ClientId: id}
	}
	n.push("q", named("x"), named("y"))
	held := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})

	leased, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{
		{Partition: "a", ClientId: "x"},
	}})
	require.NoError(t, err)
	unleased, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Settlements: []*queuev1.Settlement{
		{Partition: "a", ClientId: "y"},
	}})
	require.NoError(t, err)
	rest := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})

	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, leased.GetResults()[0].GetStatus())
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, unleased.GetResults()[0].GetStatus())
	require.Empty(t, rest.GetLease())
}
