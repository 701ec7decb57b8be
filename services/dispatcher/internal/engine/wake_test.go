package engine_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/engine"
)

// carrier hands hints from one node to others, as sidecars do.
type carrier struct {
	mu sync.Mutex // guards to
	to []*node
}

func (c *carrier) each(fn func(*node)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.to {
		fn(n)
	}
}

func (c *carrier) MessagesAvailable(t tenant.ID, queue string) {
	c.each(func(n *node) { n.HintMessages(t, queue) })
}

func (c *carrier) QueueChanged(t tenant.ID, queue string, _ bool) {
	c.each(func(n *node) { n.HintQueue(t, queue) })
}

func (c *carrier) join(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.to = append(c.to, n)
}

// popLater pops in a goroutine; the answer comes through the channel.
func (n *node) popLater(ctx context.Context, req *queuev1.PopRequest) <-chan *queuev1.PopResponse {
	out := make(chan *queuev1.PopResponse, 1)
	go func() {
		resp, err := n.Pop(ctx, ten, req)
		if err != nil && ctx.Err() == nil {
			n.t.Error(err)
		}
		out <- resp
	}()
	return out
}

// awaitParked returns when that many pops wait.
func (n *node) awaitParked(count int) {
	n.t.Helper()
	eventually(n.t, func() error {
		got := int(n.metric("parked_pops"))
		return wantf(got >= count, "%d pops are parked, want %d", got, count)
	})
}

// awaitPolled returns when the poll that covers what is parked is over.
func (n *node) awaitPolled() {
	n.t.Helper()
	eventually(n.t, func() error { return wantf(n.metric("polls_total") > 0, "no poll yet") })
}

func TestParkedPopIsServedAfterAPushOnTheSameEngine(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	parked := n.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Wait: seconds(30)})
	named := n.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Group: "g", Partition: "b", Wait: seconds(30)})
	n.awaitParked(2)

	n.push("q", item("a", "1"))
	n.push("q", item("b", "2"))

	require.Equal(t, []string{"1"}, payloads(<-parked))
	require.Equal(t, []string{"2"}, payloads(<-named))
}

func TestParkedPopIsServedAfterAPushOnAnotherEngineWithEveryHintLost(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	parked := b.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Wait: seconds(30)})
	named := b.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Group: "g", Partition: "new", Wait: seconds(30)})
	b.awaitParked(2)
	clk := clock.Real{}
	began := clk.Now()

	a.push("q", item("new", "1"))

	require.Equal(t, []string{"1"}, payloads(<-parked))
	require.Equal(t, []string{"1"}, payloads(<-named))
	require.Less(t, clk.Since(began), 10*time.Second) // 1 s, x 10 beside other tests
}

func TestParkedPopIsServedAfterAPushOnAnotherEngineByAHint(t *testing.T) {
	t.Parallel()
	url := database(t)
	hints := &carrier{}
	slow := func(c *engine.Config) { c.RepollMin, c.RepollMax = time.Hour, time.Hour }
	a, b := newNode(t, url, nodeOptions{hints: hints}), newNode(t, url, nodeOptions{cfg: slow})
	hints.join(b)
	parked := b.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Wait: seconds(20)})
	b.awaitParked(1)
	b.awaitPolled() // the poll of its arrival finds nothing; another is an hour away

	a.push("q", item("a", "1"))

	require.Equal(t, []string{"1"}, payloads(<-parked))
}

// A pop looks at one shard after the other and parks; what commits behind its back meanwhile finds it all the same, although no poll helps.
func TestNoWakeFallsBetweenPlanAndPark(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{cfg: func(c *engine.Config) { c.RepollMin, c.RepollMax = time.Hour, time.Hour }})
	makeQueue(t, n, 64)
	for i := range 150 {
		popped := n.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Wait: seconds(10)})
		n.push("q", item(strconv.Itoa(i), strconv.Itoa(i)))

		resp := <-popped

		require.Equal(t, []string{strconv.Itoa(i)}, payloads(resp))
		n.ackAll("q", resp.GetLease())
	}
}

func TestAPopSeesWhatAnotherEngineCommittedBeforeIt(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	require.Empty(t, b.pop(&queuev1.PopRequest{Queue: "q"}).GetLease())
	for i := range 20 {
		a.push("q", item("a", strconv.Itoa(i)))

		popped := b.pop(&queuev1.PopRequest{Queue: "q"})

		require.Equal(t, []string{strconv.Itoa(i)}, payloads(popped))
		a.ackAll("q", popped.GetLease())
	}
}

func TestReleaseOnOneEngineWakesAPopOnAnother(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	a.push("q", item("a", "1"))
	held := a.pop(&queuev1.PopRequest{Queue: "q"})
	parked := b.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Wait: seconds(30)})
	b.awaitParked(1)

	_, err := a.Release(t.Context(), ten, &queuev1.ReleaseRequest{Queue: "q", Lease: held.GetLease()})
	require.NoError(t, err)

	require.Equal(t, []string{"1"}, payloads(<-parked))
}

func TestAnExpiredLeaseWakesAParkedPop(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("a", "1"))
	n.pop(&queuev1.PopRequest{Queue: "q", Lease: seconds(1)})

	again := n.pop(&queuev1.PopRequest{Queue: "q", Wait: seconds(30)})

	require.Equal(t, []string{"1"}, payloads(again))
	require.Equal(t, int32(2), again.GetDeliveries()[0].GetAttempt())
}

func TestAThousandParkedPopsOnIdleQueuesCostAlmostNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	var making errgroup.Group
	making.SetLimit(8) // a thousand at a time would wait for one another longer than a busy machine lets a statement wait
	for i := range 1000 {
		making.Go(func() error {
			_, err := n.Pop(ctx, ten, &queuev1.PopRequest{Queue: fmt.Sprintf("q%d", i)})
			return err
		})
	}
	require.NoError(t, making.Wait())
	var waiting []<-chan *queuev1.PopResponse
	for i := range 1000 {
		waiting = append(waiting, n.popLater(ctx, &queuev1.PopRequest{Queue: fmt.Sprintf("q%d", i), Wait: seconds(60)}))
	}
	n.awaitParked(1000)
	clk := clock.Real{}
	require.NoError(t, clk.Sleep(ctx, 2*time.Second)) // until the last arrival's first re-polls are over
	n.count.Take()

	const measured = 5 * time.Second
	require.NoError(t, clk.Sleep(ctx, measured))
	statements := n.count.Take()
	cancel()
	for _, w := range waiting {
		<-w
	}

	require.Less(t, float64(len(statements))/measured.Seconds(), 20.0)
	require.NotEmpty(t, statements)
}

func TestOneWakePerLease(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan *queuev1.PopResponse, 1000)
	var wg sync.WaitGroup
	for range 1000 {
		wg.Go(func() {
			if resp, err := n.Pop(ctx, ten, &queuev1.PopRequest{Queue: "q", Wait: seconds(60)}); err == nil && resp.GetLease() != "" {
				served <- resp
			}
		})
	}
	n.awaitParked(1000)
	n.count.Take()

	n.push("q", item("a", "1"))
	first := <-served

	claims := 0
	for _, s := range n.count.Take() {
		if strings.Contains(s, "UPDATE dispatcher.group_shards") {
			claims++
		}
	}
	cancel()
	wg.Wait()
	require.Equal(t, []string{"1"}, payloads(first))
	require.LessOrEqual(t, claims, 2)
	require.Empty(t, served)
}

func TestACancelledPopLeavesNoLease(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	for i := range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		parked := n.popLater(ctx, &queuev1.PopRequest{Queue: "q", Wait: seconds(30)})
		if i%2 == 0 {
			n.awaitParked(1)
		}
		var wg sync.WaitGroup
		wg.Go(func() { n.push("q", item("a", strconv.Itoa(i))) })
		cancel()
		wg.Wait()
		resp := <-parked
		if resp == nil { // cancelled: the message must be there for another
			resp = n.pop(&queuev1.PopRequest{Queue: "q", Wait: seconds(10)})
		}

		require.Equal(t, []string{strconv.Itoa(i)}, payloads(resp))
		require.Equal(t, int32(1), resp.GetDeliveries()[0].GetAttempt())
		n.ackAll("q", resp.GetLease())
	}
}

// The grant is held up until the client has left, so that it comes too late.
func TestAPopThatIsGrantedAfterItsClientLeftLeavesNoLease(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.pop(&queuev1.PopRequest{Queue: "q"}) // makes the group
	n.push("q", item("a", "1"))
	lock := outside(t, url)
	_, err := lock.Exec(t.Context(), "SELECT FROM dispatcher.group_shards FOR UPDATE")
	require.NoError(t, err)
	ctx, leave := context.WithCancel(t.Context())
	popped := n.popLater(ctx, &queuev1.PopRequest{Queue: "q", Wait: seconds(30)})
	eventually(t, func() error { return wantf(waiting(t, lock) > 0, "the pop has not reached the lock") })

	leave()
	require.NoError(t, lock.Rollback(t.Context()))

	require.Nil(t, <-popped)
	eventually(t, func() error { return wantf(n.leases() == 0, "%d leases are left", n.leases()) })
	again := n.pop(&queuev1.PopRequest{Queue: "q", Wait: seconds(10)})
	require.Equal(t, []string{"1"}, payloads(again))
	require.Equal(t, int32(1), again.GetDeliveries()[0].GetAttempt())
}
