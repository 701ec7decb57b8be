package store_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/route"
	"postrider.dev/services/dispatcher/internal/store"
)

// node is a dispatcher of a host, as the directory has it.
type node struct {
	route.Node

	c *cold
}

func (c *cold) node(host string) node {
	n := node{route.Node{ID: uuid.NewString(), Host: host}, c}
	n.announce("online")
	return n
}

func (n node) announce(state string) {
	n.c.t.Helper()
	nodes, err := json.Marshal([]map[string]any{{
		"id": n.ID, "host_id": n.Host, "zone": "z", "service": "dispatcher", "state": state, "version": "v", "addresses": map[string]string{"internal": "at-" + n.Host},
	}})
	require.NoError(n.c.t, err)
	n.c.exec("SELECT mesh.announce($1)", nodes)
}

// serve writes that the node has a subscriber of the queue, or none.
func (n node) serve(q store.Queue, subscribers int64) {
	n.c.t.Helper()
	counts := map[int64]int64{}
	if subscribers > 0 {
		counts[q.ID] = subscribers
	}
	require.NoError(n.c.t, n.c.control.PutSubscribers(n.c.t.Context(), uuid.MustParse(n.ID), counts, time.Hour))
}

// claim says whether the node got the route.
func (n node) claim(q store.Queue) bool {
	n.c.t.Helper()
	won, err := n.c.control.ClaimRoutes(n.c.t.Context(), n.Node, []int64{q.ID})
	require.NoError(n.c.t, err)
	if len(won) > 0 {
		require.Equal(n.c.t, []store.QueueName{{Tenant: q.Tenant, Queue: q.Name}}, won)
	}
	return len(won) > 0
}

func (c *cold) routed(q store.Queue) store.Route {
	c.t.Helper()
	r, err := c.control.Route(c.t.Context(), q.ID)
	require.NoError(c.t, err)
	return r
}

func TestTheFirstHostWithASubscriberGetsTheRouteAndKeepsItUntilItHasNone(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("acme", "q")
	a, b := c.node("a"), c.node("b")
	require.Zero(t, c.routed(q).Epoch)

	a.serve(q, 1)
	require.True(t, a.claim(q))
	b.serve(q, 5)
	require.False(t, b.claim(q), "its host has a subscriber")
	require.False(t, a.claim(q), "it has it")
	require.Equal(t, "a", c.routed(q).Host)

	a.serve(q, 0)
	require.True(t, b.claim(q), "the holder's host has no subscriber left")
	r := c.routed(q)
	require.Equal(t, route.Record{NodeID: b.ID, Epoch: 2}, r.Record)
	require.Equal(t, "b", r.Host)
	require.False(t, r.ClaimedAt.IsZero())
}

func TestTheRouteOfANodeThatIsNotOnlineIsVoidUntilAnotherTakesIt(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("acme", "q")
	a, b := c.node("a"), c.node("b")
	a.serve(q, 1)
	require.True(t, a.claim(q))
	found := func() map[string]string {
		t.Helper()
		got, err := c.control.FindRoutes(t.Context(), "acme", []string{"q", "none"})
		require.NoError(t, err)
		return got
	}
	require.Equal(t, map[string]string{"q": "at-a"}, found())

	a.announce("draining")
	require.Empty(t, found())
	require.Empty(t, c.routed(q).Host)
	b.serve(q, 1)
	require.True(t, b.claim(q), "although the other still has a subscriber")

	require.Equal(t, map[string]string{"q": "at-b"}, found())
	require.EqualValues(t, 2, c.routed(q).Epoch)
}

func TestOfManyThatClaimARouteAtOnceEachEpochHasOne(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("acme", "q")
	for round := range 20 {
		nodes := make([]node, 4) // no host has a subscriber, so each takes it from whoever it sees there
		for i := range nodes {
			nodes[i] = c.node(fmt.Sprintf("h%d-%d", round, i))
		}
		before := c.routed(q).Epoch
		var won atomic.Int64
		var wg sync.WaitGroup
		for _, n := range nodes {
			own := c.another()
			wg.Go(func() {
				got, err := own.ClaimRoutes(t.Context(), n.Node, []int64{q.ID})
				if err != nil {
					t.Errorf("claim: %v", err)
				}
				won.Add(int64(len(got)))
			})
		}
		wg.Wait()
		require.Positive(t, won.Load())
		require.EqualValues(t, won.Load(), c.routed(q).Epoch-before, "each epoch has one that got it")
	}
}

func TestAClaimOnARecordThatHasChangedChangesNothing(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("acme", "q")
	a, b := c.node("a"), c.node("b")
	require.True(t, a.claim(q))

	won, err := c.control.TakeRoutes(t.Context(), b.Node, []int64{q.ID}, []int64{1}) // it has seen that there was none

	require.NoError(t, err)
	require.Empty(t, won)
	require.Equal(t, route.Record{NodeID: a.ID, Epoch: 1}, c.routed(q).Record)
	won, err = c.control.TakeRoutes(t.Context(), b.Node, []int64{q.ID}, []int64{2})
	require.NoError(t, err)
	require.Len(t, won, 1)
}

func TestADeletedQueueHasNoRouteAndNeitherHasItsSuccessor(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("acme", "q")
	a := c.node("a")
	require.True(t, a.claim(q))
	_, err := c.control.DeleteQueue(t.Context(), by("acme"), "q", true)
	require.NoError(t, err)

	require.False(t, a.claim(q))
	next := c.queue("acme", "q")
	require.Zero(t, c.routed(next).Epoch)
	got, err := c.control.FindRoutes(t.Context(), "acme", []string{"q"})
	require.NoError(t, err)
	require.Empty(t, got)
	c.purgeAll()
	require.Zero(t, scan[int](c.bench, "SELECT count(*)::int FROM dispatcher.routes"))
}

func TestNamesThatLookLikeRegistrationsAreOrdinaryAndOfOneTenant(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	a := c.node("a")
	names := []string{"a", "a/c/1", "a/c", "producer/x", "consumer/x", "/", "routes", "a/c/1/2/k"}
	routed := map[string]string{}
	for i, name := range names {
		q := c.queue("acme", name)
		c.queue("other", name)
		if i%2 == 0 {
			require.True(t, a.claim(q))
			routed[name] = "at-a"
		}
	}

	got, err := c.control.FindRoutes(t.Context(), "acme", names)
	require.NoError(t, err)
	require.Equal(t, routed, got)
	got, err = c.control.FindRoutes(t.Context(), "other", names)
	require.NoError(t, err)
	require.Empty(t, got)
}
