package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

func TestAPopThatNamesNoGroupIsOfTheOneNamedDefaultWhichItMakes(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.push("q", item("a", "1"), item("b", "2"))
	require.Zero(t, count(t, url, "SELECT count(*) FROM dispatcher.groups"), "a push makes none")

	unnamed := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 1})
	named := n.pop(&queuev1.PopRequest{Queue: "q", Group: "default", Batch: 10})
	other := n.pop(&queuev1.PopRequest{Queue: "q", Group: "other", Batch: 10})

	require.Equal(t, []string{"1"}, payloads(unnamed))
	require.Equal(t, []string{"2"}, payloads(named), "the first is leased in the same group")
	require.Equal(t, []string{"1", "2"}, payloads(other))
	require.Equal(t, 1, count(t, url, "SELECT count(*) FROM dispatcher.groups WHERE name = 'default'"))
	require.Equal(t, 2, count(t, url, "SELECT count(*) FROM dispatcher.groups"))
}

func TestAPopThatFindsNothingInItsTimeIsAnsweredEmptyAndIsNoError(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("a", "1"))
	n.pop(&queuev1.PopRequest{Queue: "q"})
	const wait = 300 * time.Millisecond

	began := time.Now()
	at, err := n.Pop(t.Context(), ten, &queuev1.PopRequest{Queue: "q"})
	require.NoError(t, err)
	atOnce := time.Since(began)
	began = time.Now()
	waited, err := n.Pop(t.Context(), ten, &queuev1.PopRequest{Queue: "q", Wait: seconds(wait.Seconds())})
	require.NoError(t, err)

	require.GreaterOrEqual(t, time.Since(began), wait)
	require.Empty(t, waited.GetDeliveries())
	require.Empty(t, waited.GetLease())
	require.Empty(t, at.GetDeliveries())
	require.Empty(t, at.GetLease())
	require.Less(t, atOnce, 10*time.Second, "without a wait it does not wait for a poll of any pace")
}

func TestAPopGivesNoMoreMessagesThanItsBatch(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("a", "1"), item("a", "2"), item("b", "3"), item("c", "4"), item("c", "5"))

	one := n.pop(&queuev1.PopRequest{Queue: "q", Group: "one"})
	three := n.pop(&queuev1.PopRequest{Queue: "q", Group: "three", Batch: 3})
	named := n.pop(&queuev1.PopRequest{Queue: "q", Group: "named", Partition: "c", Batch: 3})

	require.Equal(t, []string{"1"}, payloads(one), "one, unless it says otherwise")
	require.Equal(t, []string{"1", "2", "3"}, payloads(three))
	require.Equal(t, []string{"4", "5"}, payloads(named), "only of the partition that was named")
}

func TestRetentionOfTheLogLeavesDeadLettersWhole(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"retention": "30m0s"}`)
	n.push("q", item("a", "dead"))
	got := n.pop(&queuev1.PopRequest{Queue: "q"})
	n.ack(&queuev1.AckRequest{Queue: "q", Lease: got.GetLease(), Settlements: []*queuev1.Settlement{rejectOf(got.GetDeliveries()[0])}})
	age(t, url)
	n.push("q", item("a", "new"))

	require.NoError(t, n.trimmer().Round(t.Context()))
	require.Equal(t, 1, count(t, url, "SELECT tail FROM dispatcher.shards"), "its message is gone from the log")
	letters, err := n.control.ListDeadLetters(t.Context(), ten, "q", letterFilter())
	require.NoError(t, err)
	require.Len(t, letters, 1)
	letter, err := n.control.GetDeadLetter(t.Context(), ten, "q", letters[0].ID)
	require.NoError(t, err)
	done, err := n.control.Redrive(t.Context(), byAdmin, "q", store.RedriveRequest{Group: "default", Limit: 1})
	require.NoError(t, err)

	require.Equal(t, "dead", string(letter.Payload))
	require.Equal(t, "bad", letter.LastError)
	require.False(t, letter.Trimmed)
	require.Equal(t, 1, done.Redriven)
	next := n.pop(&queuev1.PopRequest{Queue: "q"})
	n.ackAll("q", next.GetLease())
	require.Equal(t, []string{"new"}, payloads(next))
	require.Equal(t, []string{"dead"}, payloads(n.pop(&queuev1.PopRequest{Queue: "q", Wait: seconds(20)})))
}

func TestAnIdempotencyKeyIsOfOnePartitionOfOneQueue(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	keyed := func(partition string) *queuev1.PushItem {
		return &queuev1.PushItem{Partition: partition, Payload: []byte("x"), IdempotencyKey: "k"}
	}

	n.push("q", keyed("a"))
	n.push("q", keyed("b"))
	n.push("other", keyed("a"))
	again, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{keyed("b")}})
	require.NoError(t, err)

	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, again.GetResults()[0].GetStatus())
	require.Len(t, n.stored("q"), 2)
	require.Len(t, n.stored("other"), 1)
}

func TestWithoutAWindowKeysAreNotKept(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"idempotency_window": "0s"}`)

	n.push("q", keyedItem("1"), keyedItem("1"))
	n.push("q", keyedItem("1"))

	require.Equal(t, []string{"1", "1", "1"}, n.stored("q"))
	require.Zero(t, count(t, url, "SELECT count(*) FROM dispatcher.idempotency_keys"))
}

func TestATailTakesNoLeaseAndMakesNoGroup(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	id, _ := n.locate(queue.Earliest)
	f, err := n.Follow(t.Context(), ten, "q", id, []message.Offset{0})
	require.NoError(t, err)
	defer f.Close()

	n.push("q", item("a", "1"), item("a", "2"))
	require.Equal(t, []string{"1", "2"}, n.follow(f, 0, 2))

	require.Zero(t, n.leases())
	require.Zero(t, count(t, url, "SELECT count(*) FROM dispatcher.groups"))
	require.Equal(t, []string{"1", "2"}, payloads(n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})))
}
