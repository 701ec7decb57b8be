package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// grantedAt is when the lease of an answer began.
func grantedAt(r *queuev1.PopResponse) time.Time {
	return r.GetLeaseExpiresAt().AsTime().Add(-r.GetLeaseDuration().AsDuration())
}

func TestAPopThatWaitsIsServedWhenAMessageIsOldEnoughAndNotBeforeOnWhateverDispatcher(t *testing.T) {
	t.Parallel()
	const delay = 1500 * time.Millisecond
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	a.set(url, `{"delay": "1500ms"}`)
	parked := b.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Batch: 9, Wait: seconds(30)})
	named := b.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Group: "h", Partition: "p", Batch: 9, Wait: seconds(30)})
	b.awaitParked(2)

	a.push("q", item("p", "0"), item("r", "1"))
	none := a.pop(&queuev1.PopRequest{Queue: "q", Batch: 9})
	all, mine := <-parked, <-named

	require.Empty(t, none.GetDeliveries())
	require.Equal(t, []string{"0", "1"}, payloads(all))
	require.Equal(t, []string{"0"}, payloads(mine))
	for _, r := range []*queuev1.PopResponse{all, mine} {
		require.GreaterOrEqual(t, grantedAt(r).Sub(r.GetDeliveries()[0].GetCreatedAt().AsTime()), delay, "by the database's clock")
	}
}

func TestAPopThatWaitsHearsOfAnotherDelayThoughNoHintComes(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	a.set(url, `{"delay": "15m"}`)
	b.push("q", item("p", "0"))
	require.Empty(t, b.pop(&queuev1.PopRequest{Queue: "q", Wait: seconds(0.1)}).GetDeliveries())
	parked := b.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Wait: seconds(60)})
	b.awaitParked(1)

	a.set(url, `{"delay": "0s"}`) // b is not told

	require.Equal(t, []string{"0"}, payloads(<-parked))
}

func TestWhoReadsTheLogDoesNotWaitForTheDelay(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"delay": "15m"}`)
	id, _ := n.locate("latest")
	pushed := n.push("q", item("p", "0"))

	page, err := n.ReadLog(t.Context(), ten, "q", id, 0, 0)
	require.NoError(t, err)

	require.Len(t, page.GetMessages(), 1)
	require.Equal(t, pushed[0].GetMessageId(), page.GetMessages()[0].GetMessageId())
	require.Empty(t, n.pop(&queuev1.PopRequest{Queue: "q"}).GetDeliveries())
}

func TestWhatATransactionPushesWaitsForTheDelayAndWhatItAcksDoesNot(t *testing.T) {
	t.Parallel()
	const delay = 1500 * time.Millisecond
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"delay": "1500ms"}`)
	n.push("q", item("p", "0"))
	held := n.pop(&queuev1.PopRequest{Queue: "q", Wait: seconds(30)})

	n.transact("k", acking("q", held), pushing("q", item("p", "1")))
	got := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 9, Wait: seconds(30)})

	require.Equal(t, []string{"1"}, payloads(got))
	require.GreaterOrEqual(t, grantedAt(got).Sub(got.GetDeliveries()[0].GetCreatedAt().AsTime()), delay, "by the database's clock")
}
