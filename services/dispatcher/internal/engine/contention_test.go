package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/pg"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// TestParkedPopsAreNotWokenForNothingUnderContention has two engines work on one group while a pop waits on the first for a partition that never comes.
func TestParkedPopsAreNotWokenForNothingUnderContention(t *testing.T) {
	t.Parallel()
	const rounds = 20
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	a.push("q", item("a", "0"))
	ctx, leave := context.WithCancel(t.Context())
	waits := a.popLater(ctx, &queuev1.PopRequest{Queue: "q", Partition: "never", Wait: seconds(60)})
	a.awaitParked(1)
	a.awaitPolled()

	for range rounds {
		held := a.pop(&queuev1.PopRequest{Queue: "q"})
		_, err := b.Renew(t.Context(), ten, &queuev1.RenewRequest{Queue: "q", Lease: held.GetLease()}) // a has lost its next race
		require.NoError(t, err)
		_, err = a.Release(t.Context(), ten, &queuev1.ReleaseRequest{Queue: "q", Lease: held.GetLease()})
		require.NoError(t, err)
		for range 20 { // a has time to do what it should not
			b.push("other", item("a", "1"))
		}
	}
	misses := a.metric("wake_misses_total")
	leave()
	<-waits

	require.LessOrEqual(t, misses, 4.0*rounds)
}

// TestAViewThatCannotBeBroughtUpToDateIsReadAgain damages what an engine reads under the lock.
func TestAViewThatCannotBeBroughtUpToDateIsReadAgain(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	a.push("q", item("a", "1"), item("b", "2"), item("c", "3"))
	a.ackAll("q", a.pop(&queuev1.PopRequest{Queue: "q"}).GetLease())
	b.pop(&queuev1.PopRequest{Queue: "q"}) // and a does not know
	_, err := a.db.Exec(t.Context(), `UPDATE dispatcher.leases SET entries = '\xffffff'`)
	require.NoError(t, err)

	_, damaged := a.Pop(t.Context(), ten, &queuev1.PopRequest{Queue: "q"})
	_, err = a.db.Exec(t.Context(), `DELETE FROM dispatcher.leases`)
	require.NoError(t, err)
	healed := a.pop(&queuev1.PopRequest{Queue: "q"})

	require.Error(t, damaged)
	require.Equal(t, []string{"2"}, payloads(healed))
}

// TestARejectThatWaitsIsAnsweredWhenTheEngineEnds keeps both slots beside the lanes busy, so that a dead letter waits for one.
func TestARejectThatWaitsIsAnsweredWhenTheEngineEnds(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{pool: func(o *pg.Options) { o.RuntimeParams["lock_timeout"] = "0" }})
	other := newNode(t, url, nodeOptions{}) // makes the groups
	n.push("q", item("a", "1"))
	held := n.pop(&queuev1.PopRequest{Queue: "q"})
	other.pop(&queuev1.PopRequest{Queue: "q", Group: "one"})
	other.pop(&queuev1.PopRequest{Queue: "q", Group: "two"})
	lock := outside(t, url)
	_, err := lock.Exec(t.Context(), "LOCK TABLE dispatcher.group_shards")
	require.NoError(t, err)
	var answers []<-chan error
	for _, group := range []string{"one", "two"} { // their views are read
		answers = append(answers, later(func() error {
			_, err := n.Pop(t.Context(), ten, &queuev1.PopRequest{Queue: "q", Group: group})
			return err
		}))
	}
	eventually(t, func() error {
		reading := waiting(t, lock)
		return wantf(reading >= 2, "%d views are being read", reading)
	})

	answers = append(answers, later(func() error {
		_, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{
			{MessageId: held.GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_REJECT},
		}})
		return err
	}))
	eventually(t, func() error { return wantf(n.metric("queued_requests") >= 1, "not asked yet") })
	n.stop()

	for i, answer := range answers {
		select {
		case err := <-answer:
			require.Error(t, err)
		case <-clock.Real{}.After(10 * time.Second):
			t.Fatalf("request %d is not answered", i)
		}
	}
}

// later runs fn in a goroutine; its error comes through the channel.
func later(fn func() error) <-chan error {
	out := make(chan error, 1)
	go func() { out <- fn() }()
	return out
}

// TestAPopOfOnePartitionHearsOfARetryThatComesDue has retries of two partitions, the later of which is waited for.
func TestAPopOfOnePartitionHearsOfARetryThatComesDue(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("a", "1"), item("b", "2"))
	held := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 2})
	_, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{
		{MessageId: held.GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_NACK, Delay: seconds(1)},
		{MessageId: held.GetDeliveries()[1].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_NACK, Delay: seconds(0.5)},
	}})
	require.NoError(t, err)

	got := n.pop(&queuev1.PopRequest{Queue: "q", Partition: "a", Wait: seconds(20)})

	require.Equal(t, []string{"1"}, payloads(got))
}

// TestAPopOfOnePartitionHearsOfALeaseThatRanOut has no reaper that would take the lease back.
func TestAPopOfOnePartitionHearsOfALeaseThatRanOut(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("a", "1"), item("b", "2"))
	n.pop(&queuev1.PopRequest{Queue: "q", Partition: "a", Lease: seconds(1)})
	n.pop(&queuev1.PopRequest{Queue: "q", Partition: "b", Lease: seconds(0.5)})

	got := n.pop(&queuev1.PopRequest{Queue: "q", Partition: "a", Wait: seconds(20)})

	require.Equal(t, []string{"1"}, payloads(got))
}
