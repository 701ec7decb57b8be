package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/trace"
	"postrider.dev/services/dispatcher/internal/store"
)

// recorded is the kinds of what was recorded of a message of the queue "q", and its leases.
func (n *node) recorded(id string) (kinds []trace.Kind, leases map[uint64]int) {
	n.t.Helper()
	q, err := n.control.FindQueue(n.t.Context(), ten, "q")
	require.NoError(n.t, err)
	place, err := message.ParseID(id)
	require.NoError(n.t, err)
	got, err := n.control.Trace(n.t.Context(), q, place, store.TracePage{Limit: 1000})
	require.NoError(n.t, err)
	leases = map[uint64]int{}
	for _, e := range got.Events.Events {
		kinds = append(kinds, e.Kind)
		if e.Epoch != 0 {
			leases[e.Epoch]++
		}
	}
	return kinds, leases
}

func TestWhatIsAnsweredIsRecordedOnceThoughTheAnswerOfTheDatabaseIsLost(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]int32{"answer lost": cutAnswer, "request lost": cutRequest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := database(t)
			c := &cutter{}
			n := newNode(t, url, nodeOptions{pool: c.pool})
			n.set(url, `{"trace": true}`)
			id := n.push("q", item("a", "1"))[0].GetMessageId()
			popped := n.pop(&queuev1.PopRequest{Queue: "q"})

			c.armed.Store(how)
			_, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: popped.GetLease(), AckRest: true})
			require.NoError(t, err)

			require.Equal(t, int32(1), c.did.Load())
			kinds, leases := n.recorded(id)
			require.Equal(t, []trace.Kind{trace.Pushed, trace.Delivered, trace.Acked}, kinds)
			require.Len(t, leases, 1)
		})
	}
}

func TestAPopThatNobodyHeardOfIsRecordedWithItsRelease(t *testing.T) {
	t.Parallel()
	url := database(t)
	c := &cutter{}
	n := newNode(t, url, nodeOptions{pool: c.pool})
	n.set(url, `{"trace": true}`)
	n.push("q", item("a", "0"))
	n.ackAll("q", n.pop(&queuev1.PopRequest{Queue: "q"}).GetLease())
	id := n.push("q", item("a", "1"))[0].GetMessageId()

	c.armed.Store(cutAnswer)
	n.ackAll("q", n.pop(&queuev1.PopRequest{Queue: "q", Wait: seconds(20)}).GetLease())

	kinds, leases := n.recorded(id)
	require.Equal(t, []trace.Kind{trace.Pushed, trace.Delivered, trace.Released, trace.Delivered, trace.Acked}, kinds)
	require.Len(t, leases, 2)
}

func TestAMessageThatCameDueTellsUnderWhichIDItWaited(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"trace": true}`)
	pending := n.push("q", inAnHour("a", "1"))[0].GetMessageId()
	n.comeDue()
	popped := n.pop(&queuev1.PopRequest{Queue: "q"})

	q, err := n.control.FindQueue(t.Context(), ten, "q")
	require.NoError(t, err)
	got, err := n.control.Trace(t.Context(), q, message.ID{Shard: q.Shards[0]}, store.TracePage{Limit: 9})
	require.NoError(t, err)
	require.Len(t, got.Events.Events, 3)
	require.Equal(t, trace.Event{Kind: trace.Due, Text: pending}, got.Events.Events[1].Event)
	require.Equal(t, popped.GetDeliveries()[0].GetMessageId(), message.ID{Shard: q.Shards[0]}.String())
}

func TestRecordingBeginsAndEndsWithTheOptionThoughTheGroupIsInUse(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	results := n.push("q", item("a", "1"), item("b", "2"), item("c", "3"))
	untraced := n.pop(&queuev1.PopRequest{Queue: "q"})
	configure := func(config string) {
		n.set(url, config)
		n.push("q", item("z", "z")) // the answer of the commit tells of the new options
	}

	configure(`{"trace": true}`)
	traced := n.pop(&queuev1.PopRequest{Queue: "q"})
	n.ackAll("q", untraced.GetLease())
	configure(`{}`)
	n.pop(&queuev1.PopRequest{Queue: "q"})
	n.ackAll("q", traced.GetLease())

	for i, want := range [][]trace.Kind{{trace.Pushed, trace.Acked}, {trace.Pushed, trace.Delivered}, {trace.Pushed}} {
		kinds, _ := n.recorded(results[i].GetMessageId())
		require.Equal(t, want, kinds)
	}
}
