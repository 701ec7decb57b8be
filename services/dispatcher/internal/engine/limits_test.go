package engine_test

import (
	"crypto/rand"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/engine"
)

// noise is an item that does not become smaller by compression.
func noise(partition string, bytes int) *queuev1.PushItem {
	payload := make([]byte, bytes)
	_, _ = rand.Read(payload)
	return &queuev1.PushItem{Partition: partition, Payload: payload}
}

// tryPush pushes to the queue "q".
func (n *node) tryPush(items ...*queuev1.PushItem) error {
	_, err := n.Push(n.t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: items})
	return err
}

func requireFull(t *testing.T, err error, option string) {
	t.Helper()
	full := &engine.QueueFullError{}
	require.ErrorAs(t, err, &full)
	require.Equal(t, option, string(full.Option))
	require.Positive(t, full.RetryAfter)
}

func TestTwoDispatchersNeverOvershootTheBytesOfAQueue(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 3} {
		t.Run(strconv.Itoa(shards), func(t *testing.T) {
			t.Parallel()
			const most = 40_000
			url := database(t)
			nodes := []*node{newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})}
			makeQueue(t, nodes[0], shards)
			nodes[0].set(url, fmt.Sprintf(`{"shards": %d, "max_queue_bytes": %d}`, shards, most))
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					for j := range 10 {
						if err := nodes[i%2].tryPush(noise(fmt.Sprint(i, j), 900), noise(fmt.Sprint(j, i), 900)); err != nil {
							requireFull(t, err, "max_queue_bytes")
						}
					}
				})
			}
			wg.Wait()

			kept := count(t, url, "SELECT max(end_bytes - tail_bytes) FROM dispatcher.shards")
			require.LessOrEqual(t, kept, most/shards+1)
			require.Greater(t, kept, most/shards*8/10)
			requireFull(t, nodes[0].tryPush(noise("a", 9000)), "max_queue_bytes")
			require.Zero(t, count(t, url, "SELECT sum(count) % 2 FROM dispatcher.segments"), "each push came in as a whole or not at all")
		})
	}
}

func TestAFullQueueReopensWhenWhatIsSettledGoesAndRemembersDuplicates(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"max_queue_bytes": 2500, "retention_settled": true}`)
	keyed := noise("a", 1000)
	keyed.IdempotencyKey = "once"
	n.push("q", keyed)
	n.push("q", noise("a", 1000))

	requireFull(t, n.tryPush(noise("a", 1000)), "max_queue_bytes")
	fresh := noise("a", 1000)
	fresh.IdempotencyKey = "another"
	requireFull(t, n.tryPush(fresh), "max_queue_bytes")
	again, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{keyed}})
	require.NoError(t, err)
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, again.GetResults()[0].GetStatus())
	n.push("q", noise("a", 100)) // what is small still fits
	n.ackAll("q", n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10}).GetLease())
	require.NoError(t, n.trimmer().Round(t.Context()))

	n.push("q", noise("a", 1000), noise("a", 1000)) // the newest segment is gone too, or this would not fit
	require.InDelta(t, 2, n.metric("pushes_full_total"), 0)
}

func TestPendingMessagesAreLimitedExactlyByOneDispatcherAndReopenWhenSettled(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"max_queue_messages": 5}`)
	for i := range 4 {
		n.push("q", item("a", strconv.Itoa(i)))
	}
	requireFull(t, n.tryPush(item("a", "4"), item("a", "5")), "max_queue_messages")
	n.push("q", item("a", "4"))
	keyed := item("b", "x")
	keyed.IdempotencyKey = "k"
	requireFull(t, n.tryPush(keyed), "max_queue_messages")

	n.ackAll("q", n.pop(&queuev1.PopRequest{Queue: "q", Batch: 3}).GetLease())

	eventually(t, func() error { return n.tryPush(item("a", "6"), item("a", "7")) })
	eventually(t, func() error { return n.tryPush(keyed) })
	requireFull(t, n.tryPush(item("a", "8")), "max_queue_messages")
}

func TestAFullQueueHarmsNoOtherInItsCommit(t *testing.T) {
	t.Parallel()
	zeros := func(partition string, n int) *queuev1.PushItem {
		return &queuev1.PushItem{Partition: partition, Payload: make([]byte, n)}
	}
	for compression, payload := range map[string]func(string, int) *queuev1.PushItem{"zstd": noise, "none": zeros} {
		t.Run(compression, func(t *testing.T) {
			t.Parallel()
			url := database(t)
			n := newNode(t, url, nodeOptions{})
			full, other := n.laneMates()
			exec(t, session(t, url), `WITH q AS (UPDATE dispatcher.queues SET config = jsonb_build_object('max_queue_bytes', 3000, 'compression', $2::text),
				config_version = 2 WHERE name = $1 RETURNING id)
				UPDATE dispatcher.shards s SET config_version = 2 FROM q WHERE s.queue_id = q.id`, full, compression)
			n.push(full, item("w", "brings the news"))
			a := newAnswers(n)

			a.together(url, other, func() {
				a.push("too large", &queuev1.PushRequest{Queue: full, Items: []*queuev1.PushItem{payload("a", 4000)}})
				a.push("small", &queuev1.PushRequest{Queue: full, Items: []*queuev1.PushItem{payload("a", 1000)}})
				a.push("other", &queuev1.PushRequest{Queue: other, Items: []*queuev1.PushItem{item("a", "1")}})
			})
			a.await(4)

			a.requireOnce()
			requireFull(t, a.errs["too large"], "max_queue_bytes")
			require.NoError(t, a.errs["small"])
			require.NoError(t, a.errs["other"])
		})
	}
}

func TestARaisedLimitIsNotRefusedByTheOldOne(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"max_queue_bytes": 100}`)
	requireFull(t, n.tryPush(noise("a", 1000)), "max_queue_bytes")
	n.set(url, `{"max_queue_bytes": 10000}`) // nobody told it

	require.NoError(t, n.tryPush(noise("a", 1000)))
}
