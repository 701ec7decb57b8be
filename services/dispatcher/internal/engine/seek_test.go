package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/store"
)

// seek moves the group "g" of the queue "q" as another dispatcher does: nothing here is told.
func (n *node) seek(partition string, to queue.Place) store.Moved {
	n.t.Helper()
	moved, err := n.control.Seek(n.t.Context(), admin(), "q", "g", store.Seek{Partition: partition, To: to})
	require.NoError(n.t, err)
	return moved
}

func earliest() queue.Place { return queue.Place{Start: queue.Start{Kind: queue.Earliest}} }

func latest() queue.Place { return queue.Place{Start: queue.Start{Kind: queue.Latest}} }

func TestSeekingBackDeliversAgainWhatWasAckedAndFencesWhatIsLeased(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	b.push("q", item("a", "1"), item("a", "2"), item("b", "3"))
	b.ackAll("q", b.pop(&queuev1.PopRequest{Queue: "q", Group: "g"}).GetLease())
	held := b.pop(&queuev1.PopRequest{Queue: "q", Group: "g", Batch: 9})
	require.Len(t, held.GetDeliveries(), 2)

	moved := a.seek("", earliest()) // b is not told

	require.Equal(t, 1, moved.Leases)
	require.Equal(t, 2, moved.Messages)
	require.EqualValues(t, 1, moved.Positions[0].From)
	require.Zero(t, moved.Positions[0].To)
	_, err := b.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), AckRest: true})
	require.ErrorIs(t, err, engine.ErrStaleEpoch)
	require.Equal(t, []string{"1", "2", "3"}, payloads(b.pop(&queuev1.PopRequest{Queue: "q", Group: "g", Batch: 9, Wait: seconds(9)})))
}

func TestASeekWakesPopsThatWaitThoughNothingIsPushed(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	b.push("q", item("a", "1"), item("b", "2"))
	b.ackAll("q", b.pop(&queuev1.PopRequest{Queue: "q", Group: "g", Batch: 2}).GetLease())
	parked := b.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Group: "g", Wait: seconds(30)})
	named := b.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Group: "g", Partition: "b", Wait: seconds(30)})
	b.awaitParked(2)

	a.seek("a", earliest())

	require.Equal(t, []string{"1"}, payloads(<-parked))
	a.seek("b", earliest())
	require.Equal(t, []string{"2"}, payloads(<-named))
}

func TestASeekForwardSkipsAndLeavesDeadLetters(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.push("q", item("a", "bad"), item("a", "2"))
	held := n.pop(&queuev1.PopRequest{Queue: "q", Group: "g"})
	_, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{
		{MessageId: held.GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_REJECT, Reason: "no"},
	}})
	require.NoError(t, err)

	n.seek("", latest())
	n.push("q", item("a", "3"))

	require.Equal(t, []string{"3"}, payloads(n.pop(&queuev1.PopRequest{Queue: "q", Group: "g", Batch: 9})))
	letters, err := n.control.ListDeadLetters(t.Context(), ten, "q", store.DeadLetterFilter{Limit: 9})
	require.NoError(t, err)
	require.Len(t, letters, 1)
}

// The seek comes from elsewhere while leases over several partitions are open; each lives on with what is not sought.
func TestASeekOfOnePartitionTakesOnlyItsMessagesOutOfLeasesOfSeveral(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	b.push("q", item("a", "a0"), item("b", "b0"), item("c", "c0"), item("a", "a1"), item("b", "b1"), item("c", "c1"),
		item("a", "a2"), item("b", "b2"), item("c", "c2"))
	b.ackAll("q", b.pop(&queuev1.PopRequest{Queue: "q", Group: "g", Partition: "a"}).GetLease())
	other := b.pop(&queuev1.PopRequest{Queue: "q", Group: "g", Partition: "c", Batch: 9})
	both := b.pop(&queuev1.PopRequest{Queue: "q", Group: "g", Batch: 5, Partitions: 2})
	require.Len(t, both.GetDeliveries(), 5)
	require.Len(t, other.GetDeliveries(), 3)

	moved := a.seek("a", earliest())

	require.Equal(t, 1, moved.Leases)
	require.Equal(t, 2, moved.Messages, "a1 and a2 were leased")
	require.EqualValues(t, 3, moved.Positions[0].From, "where a1 is")
	got := b.pop(&queuev1.PopRequest{Queue: "q", Group: "g", Batch: 9, Wait: seconds(9)})
	require.Equal(t, []string{"a0", "a1", "a2"}, payloads(got), "while b and c are leased")
	ack := &queuev1.AckRequest{Queue: "q", Lease: both.GetLease(), AckRest: true}
	rest, err := b.Ack(t.Context(), ten, ack)
	require.NoError(t, err)
	require.EqualValues(t, 3, rest.GetRestAcked(), "the b's")
	rest, err = b.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: other.GetLease(), AckRest: true})
	require.NoError(t, err)
	require.EqualValues(t, 3, rest.GetRestAcked())
}
