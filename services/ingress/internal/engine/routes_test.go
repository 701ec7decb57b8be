package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/engine"
)

func popOf(queue string) *dispatcherv1.Operation {
	return &dispatcherv1.Operation{Tenant: "t", Op: &dispatcherv1.Operation_Pop{Pop: &queuev1.PopRequest{Queue: queue}}}
}

func ack() *dispatcherv1.Operation {
	return &dispatcherv1.Operation{Tenant: "t", Op: &dispatcherv1.Operation_Ack{Ack: &queuev1.AckRequest{Queue: "q"}}}
}

// goes sends an operation and says which dispatcher it came to.
func (b *bundle) goes(t *testing.T, op *dispatcherv1.Operation) string {
	t.Helper()
	ended := b.do(t.Context(), op)
	defer func() { require.NoError(t, (<-ended).err) }()
	select {
	case a := <-b.own.arrived:
		a.answer(popped("l"))
		return b.own.addr
	case a := <-b.other.arrived:
		a.answer(popped("l"))
		return b.other.addr
	case <-time.After(5 * time.Second):
		t.Fatal("it came nowhere")
		return ""
	}
}

// reaches sends pops of the queue until they go where they should.
func (b *bundle) reaches(t *testing.T, queue, addr string) {
	t.Helper()
	require.Eventually(t, func() bool { return b.goes(t, popOf(queue)) == addr }, 5*time.Second, time.Millisecond)
}

// route says where queues are routed to from now on; both dispatchers know.
func (b *bundle) route(routes map[string]string) {
	for _, d := range []*dispatcher{b.own, b.other} {
		d.mu.Lock()
		d.routes = routes
		d.mu.Unlock()
	}
}

// asked are the routes that the dispatchers were asked for.
func (b *bundle) asked() (all []string) {
	for _, d := range []*dispatcher{b.own, b.other} {
		d.mu.Lock()
		all = append(all, d.asked...)
		d.mu.Unlock()
	}
	return all
}

func TestPopsAndAcksGoWhereTheQueueIsRoutedAndPushesStay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.route(map[string]string{"t/q": "mem:d1", "t/away": "mem:d9"})

	require.Equal(t, "mem:d0", b.goes(t, popOf("q")), "it waits for no route")
	b.reaches(t, "q", "mem:d1")

	require.Equal(t, "mem:d1", b.goes(t, ack()))
	require.Equal(t, "mem:d0", b.goes(t, push("q", "k", "x")))
	require.Equal(t, "mem:d0", b.goes(t, popOf("free")), "it is routed nowhere")
	require.Equal(t, "mem:d0", b.goes(t, popOf("away")), "its dispatcher is not in reach")
	b.awaitAsked(t, "t/q", "t/free", "t/away")
}

// awaitAsked waits until the dispatchers were asked for these routes, each once, and for no other.
func (b *bundle) awaitAsked(t *testing.T, keys ...string) {
	t.Helper()
	require.Eventually(t, func() bool { return len(b.asked()) >= len(keys) }, 5*time.Second, time.Millisecond)
	require.ElementsMatch(t, keys, b.asked())
}

func TestAHintAloneMakesOneRouteBeReadAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, queue := range []string{"a", "a/c/1", "producer/x"} {
		b.goes(t, popOf(queue))
	}
	b.awaitAsked(t, "t/a", "t/a/c/1", "t/producer/x")
	b.route(map[string]string{"t/a": "mem:d1", "t/a/c/1": "mem:d1", "t/producer/x": "mem:d1"})

	b.RouteChanged("t/unknown") // nobody pops it here
	b.RouteChanged("t/a/c/1")
	b.reaches(t, "a/c/1", "mem:d1")

	require.Equal(t, "mem:d0", b.goes(t, popOf("a")), "a hint about another queue was taken for its own")
	require.Equal(t, "mem:d0", b.goes(t, popOf("producer/x")))
	b.awaitAsked(t, "t/a", "t/a/c/1", "t/producer/x", "t/a/c/1")

	b.RouteChanged("") // any
	b.reaches(t, "a", "mem:d1")
	b.reaches(t, "producer/x", "mem:d1")
}

func TestWithEveryHintLostARouteIsReadAgainAfterAWhile(t *testing.T) {
	t.Parallel()
	b := setup(t, func(cfg *engine.Config) { cfg.RouteRefresh = 10 * time.Millisecond })
	b.goes(t, popOf("q"))
	require.Eventually(t, func() bool { return len(b.asked()) > 0 }, 5*time.Second, time.Millisecond)

	b.route(map[string]string{"t/q": "mem:d1"})
	b.reaches(t, "q", "mem:d1")
	b.route(nil)
	b.reaches(t, "q", "mem:d0")
}

func TestWhenTheRoutesDispatcherIsLostTheOwnHostServes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.route(map[string]string{"t/q": "mem:d1"})
	b.reaches(t, "q", "mem:d1")

	b.other.stop()

	b.awaitUsable(t, 1)
	require.Equal(t, "mem:d0", b.goes(t, popOf("q")))
	b.other.start()
	b.awaitUsable(t, 2)
	require.Equal(t, "mem:d1", b.goes(t, popOf("q")))
}

func TestRoutesOfManyQueuesAreAskedForTogetherAndOfEachTenantApart(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.route(map[string]string{"t/q": "mem:d1"})
	other := popOf("q")
	other.Tenant = "u"

	b.reaches(t, "q", "mem:d1")
	for range 20 {
		require.Equal(t, "mem:d0", b.goes(t, other), "another tenant's queue of the name is routed nowhere")
	}
	b.awaitAsked(t, "t/q", "u/q")
}
