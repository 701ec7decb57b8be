package engine_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/store"
)

// follow reads a queue's first shard from an offset up to another, waiting for what is not there yet, and returns the payloads.
func (n *node) follow(f *engine.Tail, from, to int64) []string {
	n.t.Helper()
	var out []string
	timeout := clock.Real{}.After(20 * time.Second)
	for from < to {
		changed := f.Changed()
		page, err := f.Page(n.t.Context(), 0, message.Offset(from))
		require.NoError(n.t, err)
		require.Equal(n.t, from, page.GetFrom())
		require.Zero(n.t, page.GetTrimmed())
		for i, m := range page.GetMessages() {
			require.Equal(n.t, from+int64(i), m.GetOffset())
			out = append(out, string(m.GetPayload()))
		}
		from = page.GetNext()
		if len(page.GetMessages()) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-timeout:
			n.t.Fatalf("offset %d did not come", from)
		}
	}
	return out
}

// locate finds where the queue "q" is from, made if need be.
func (n *node) locate(from queue.StartKind) (int64, []store.LogBounds) {
	n.t.Helper()
	id, bounds, err := n.LocateLog(n.t.Context(), ten, "q", queue.Start{Kind: from}, true)
	require.NoError(n.t, err)
	return id, bounds
}

func TestATailIsToldOfEveryCommitOfEveryDispatcherWithEveryHintLost(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	id, _ := a.locate(queue.Latest)
	f, err := b.Follow(t.Context(), ten, "q", id, []message.Offset{0})
	require.NoError(t, err)
	defer f.Close()
	f.Serve(3)

	var want []string
	for i := range 30 {
		on := []*node{a, b}[i%2]
		on.push("q", item("p", strconv.Itoa(i)))
		want = append(want, strconv.Itoa(i))
	}

	require.Equal(t, want, b.follow(f, 0, 30))
	require.Equal(t, map[int64]int64{id: 3}, b.Subscribers())
	require.Empty(t, a.Subscribers())
}

func TestTheFirstSubscriberOfATailIsTold(t *testing.T) {
	t.Parallel()
	a := newNode(t, database(t), nodeOptions{})
	id, _ := a.locate(queue.Latest)
	f, err := a.Follow(t.Context(), ten, "q", id, []message.Offset{0})
	require.NoError(t, err)
	defer f.Close()

	f.Serve(0)
	require.Empty(t, a.FirstSubscribers())
	f.Serve(1)
	require.Len(t, a.FirstSubscribers(), 1)
	<-a.FirstSubscribers()
	f.Serve(2)
	require.Empty(t, a.FirstSubscribers(), "it is not the first")
	f.Serve(0)
	f.Serve(1)
	f.Serve(0)
	f.Serve(1)
	require.Len(t, a.FirstSubscribers(), 1)
}

func TestManyTailsOfAQueueReadTheLogOnce(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	id, _ := a.locate(queue.Latest)
	a.push("q", item("p", "1"), item("p", "2"))
	var tails []*engine.Tail
	for range 20 {
		f, err := b.Follow(t.Context(), ten, "q", id, []message.Offset{0})
		require.NoError(t, err)
		defer f.Close()
		tails = append(tails, f)
	}
	b.follow(tails[0], 0, 2)

	b.count.Take()
	for _, f := range tails[1:] {
		require.Equal(t, []string{"1", "2"}, b.follow(f, 0, 2))
	}

	for _, statement := range b.count.Take() {
		require.NotContains(t, statement, "dispatcher.segments", "the log was read again")
	}
}

func TestAPageIsBoundedAndALargeMessageTravelsAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	id, _ := n.locate(queue.Latest)
	large := strings.Repeat("x", 400<<10)
	n.push("q", item("p", "a"), item("p", large), item("p", "b"))
	for range 3 {
		n.push("q", many(200)...)
	}

	var sizes []int
	for at := int64(0); ; {
		page, err := n.ReadLog(t.Context(), ten, "q", id, 0, message.Offset(at))
		require.NoError(t, err)
		if page.GetNext() == at {
			break
		}
		sizes = append(sizes, len(page.GetMessages()))
		at = page.GetNext()
	}

	require.Equal(t, []int{1, 1}, sizes[:2])
	require.Equal(t, 603, sum(sizes))
	for _, size := range sizes {
		require.LessOrEqual(t, size, 256)
	}
}

func many(n int) []*queuev1.PushItem {
	out := make([]*queuev1.PushItem, n)
	for i := range out {
		out[i] = item("p", strconv.Itoa(i))
	}
	return out
}

func sum(list []int) (n int) {
	for _, v := range list {
		n += v
	}
	return n
}

func TestWhatRetentionTookIsToldAsTrimmed(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	id, _ := a.locate(queue.Latest)
	for i := range 6 {
		a.push("q", item("p", fmt.Sprint(i, "a")), item("p", fmt.Sprint(i, "b")))
	}
	trim := func(below int) {
		t.Helper()
		_, err := a.db.Exec(t.Context(), "WITH s AS (UPDATE dispatcher.shards SET tail = $1) DELETE FROM dispatcher.segments WHERE base_offset < $1", below)
		require.NoError(t, err)
	}

	trim(4)
	page, err := b.ReadLog(t.Context(), ten, "q", id, 0, 1)
	require.NoError(t, err)
	require.EqualValues(t, 4, page.GetTrimmed())
	require.EqualValues(t, 4, page.GetMessages()[0].GetOffset())
	require.EqualValues(t, 12, page.GetNext())

	c := newNode(t, url, nodeOptions{}) // it remembers nothing
	trim(12)
	page, err = c.ReadLog(t.Context(), ten, "q", id, 0, 5)
	require.NoError(t, err)
	require.EqualValues(t, 12, page.GetTrimmed())
	require.EqualValues(t, 12, page.GetNext())
	require.Empty(t, page.GetMessages())
	_, bounds := c.locate(queue.Earliest)
	require.Equal(t, message.Offset(12), bounds[0].Start)
}

func TestATailBeginsWhereItIsAskedTo(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("p", "old"))
	var at time.Time
	eventually(t, func() error { // so that the next commit is later by the database's clock
		before := at
		require.NoError(t, n.db.QueryRow(t.Context(), "SELECT date_trunc('milliseconds', clock_timestamp())").Scan(&at))
		return wantf(at.After(before) && !before.IsZero(), "the same millisecond")
	})
	n.push("q", item("p", "new"))

	for start, want := range map[queue.Start]message.Offset{{Kind: queue.Earliest}: 0, {Kind: queue.Latest}: 2, {Kind: queue.AtTime, Time: at.UTC()}: 1} {
		_, bounds, err := n.LocateLog(t.Context(), ten, "q", start, false)
		require.NoError(t, err)
		require.Equal(t, want, bounds[0].Start, start.String())
		require.Equal(t, message.Offset(2), bounds[0].Head)
	}
	_, _, err := n.LocateLog(t.Context(), tenant.ID("other"), "q", queue.Start{Kind: queue.Latest}, false)
	require.ErrorIs(t, err, store.ErrQueueNotFound)
}

func TestATailEndsWithItsQueueAndItsPlaceIsNotAnotherQueues(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	id, _ := a.locate(queue.Latest)
	f, err := b.Follow(t.Context(), ten, "q", id, []message.Offset{0})
	require.NoError(t, err)
	defer f.Close()
	_, err = b.Follow(t.Context(), ten, "q", id, []message.Offset{5})
	require.ErrorIs(t, err, engine.ErrLogReplaced, "beyond the end")

	_, err = a.control.DeleteQueue(t.Context(), tenant.Caller{Tenant: ten, Actor: "test", Role: tenant.Admin}, "q", true)
	require.NoError(t, err)
	a.QueueChanged(ten, "q", true)

	eventually(t, func() error {
		err := f.Check(t.Context())
		return wantf(err != nil, "the tail goes on")
	})
	require.ErrorIs(t, f.Check(t.Context()), store.ErrQueueNotFound)
	again, _ := a.locate(queue.Latest)
	require.NotEqual(t, id, again)
	_, err = b.ReadLog(t.Context(), ten, "q", id, 0, 0)
	require.ErrorIs(t, err, store.ErrQueueNotFound)
}

func TestAPopThatDoesNotWaitIsToldOfNewsThatATailHeardFirst(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{cfg: func(c *engine.Config) { c.RepollMin, c.RepollMax = time.Second, time.Second }})
	id, _ := a.locate(queue.Latest)
	f, err := b.Follow(t.Context(), ten, "q", id, []message.Offset{0})
	require.NoError(t, err)
	defer f.Close()
	b.pop(&queuev1.PopRequest{Queue: "q"})

	for i := range 10 {
		a.push("q", item("p", strconv.Itoa(i)))
		got := b.pop(&queuev1.PopRequest{Queue: "q"})
		require.Equal(t, []string{strconv.Itoa(i)}, payloads(got), "it was committed before it was asked for")
		b.ackAll("q", got.GetLease())
	}
}
