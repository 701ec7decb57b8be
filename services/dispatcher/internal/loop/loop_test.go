package loop_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/run/runtest"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/route"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/loop"
	"postrider.dev/services/dispatcher/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBroken = errors.New("broken")

// reaping is a database with expired leases and an engine that takes them back.
type reaping struct {
	mu     sync.Mutex // guards the rest
	rounds int
	broken bool
	taken  map[window.GroupShardID]int
}

func (r *reaping) ExpiredLeases(_ context.Context, limit int) ([]store.Expired, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rounds++
	if r.broken {
		return nil, errBroken
	}
	var out []store.Expired
	for id := window.GroupShardID(1); id <= 40 && len(out) < limit; id++ {
		if r.taken[id] == 0 {
			out = append(out, store.Expired{GroupShard: id})
		}
	}
	return out, nil
}

func (r *reaping) Reclaim(_ context.Context, id window.GroupShardID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken[id]++
	if id == 7 {
		return errBroken
	}
	return nil
}

func TestTheReaperTakesBackEverythingOnceAndOutlivesFailures(t *testing.T) {
	t.Parallel()
	r := &reaping{taken: map[window.GroupShardID]int{}, broken: true}
	clk := clock.NewFake(time.Unix(0, 0))
	reaper := loop.NewReaper(r, r, clk, zap.NewNop(), time.Second)
	stop := runtest.Go(t, reaper.Run)
	clk.BlockUntil(1) // the first round has failed

	r.mu.Lock()
	r.broken = false
	r.mu.Unlock()
	clk.Advance(2 * time.Second)
	clk.BlockUntil(1)
	require.NoError(t, stop())

	require.Len(t, r.taken, 40)
	for id, times := range r.taken {
		require.Equal(t, 1, times, "group-shard %d", id)
	}
	require.Equal(t, 2, r.rounds)
}

// catalogue is a table of one shard's partitions.
type catalogue struct {
	upto, head message.Offset
	memory     []message.Offset // what was entered from memory
	log        int              // steps read from the log
}

func (c *catalogue) behind() []store.Behind {
	if c.upto == c.head {
		return nil
	}
	return []store.Behind{{Shard: 1, QueueID: 1, Upto: c.upto, Head: c.head}}
}

func (c *catalogue) BehindOf(context.Context, []message.ShardID) ([]store.Behind, error) {
	return c.behind(), nil
}

func (c *catalogue) BehindAfter(_ context.Context, after message.ShardID, _ int) ([]store.Behind, error) {
	if after >= 1 {
		return nil, nil
	}
	return c.behind(), nil
}

func (c *catalogue) Catalogue(_ context.Context, b store.Behind, upto message.Offset, _ []store.Sighting) (bool, error) {
	if b.Upto != c.upto {
		return false, nil
	}
	c.memory = append(c.memory, upto)
	c.upto = upto
	return true, nil
}

func (c *catalogue) CatalogueFromLog(_ context.Context, b store.Behind, _ int) (store.Behind, error) {
	c.log++
	c.upto = min(c.upto+10, c.head)
	b.Upto = c.upto
	return b, nil
}

func TestTheCataloguerReadsTheLogOnlyWhereOthersWrote(t *testing.T) {
	t.Parallel()
	c := &catalogue{head: 15}
	var seen []engine.Seen
	round := loop.NewCataloguer(c, func() []engine.Seen { return seen }, clock.NewFake(time.Unix(0, 0)), zap.NewNop(), time.Second).Round

	require.NoError(t, round(t.Context())) // others wrote 0 to 15
	c.head, seen = 40, []engine.Seen{{Shard: 1, From: 15, To: 40}}
	require.NoError(t, round(t.Context())) // all of it was written here
	c.head, seen = 70, []engine.Seen{{Shard: 1, From: 50, To: 70}}
	require.NoError(t, round(t.Context())) // others wrote 40 to 50

	require.Equal(t, []message.Offset{40, 70}, c.memory)
	require.Equal(t, 3, c.log)
	require.Equal(t, c.head, c.upto)
}

// register is the table of subscribers of one dispatcher.
type register struct {
	puts      []map[int64]int64
	claims    [][]int64
	expired   int
	broken    bool
	unclaimed bool
}

func (r *register) PutSubscribers(_ context.Context, _ uuid.UUID, counts map[int64]int64, _ time.Duration) error {
	if r.broken {
		return errBroken
	}
	r.puts = append(r.puts, counts)
	return nil
}

// ClaimRoutes takes every route.
func (r *register) ClaimRoutes(_ context.Context, self route.Node, queues []int64) ([]store.QueueName, error) {
	if r.unclaimed {
		return nil, errBroken
	}
	r.claims = append(r.claims, queues)
	return []store.QueueName{{Tenant: "acme", Queue: self.Host}}, nil
}

// followed is what a dispatcher serves.
type followed struct {
	now   map[int64]int64
	first chan struct{}
}

func (f *followed) Subscribers() map[int64]int64      { return maps.Clone(f.now) }
func (f *followed) FirstSubscribers() <-chan struct{} { return f.first }

func (r *register) ExpireSubscribers(context.Context) error {
	r.expired++
	return nil
}

func TestTheCensusIsWrittenWhenItChangesAndNowAndThen(t *testing.T) {
	t.Parallel()
	r := &register{}
	clk := clock.NewFake(time.Unix(0, 0))
	now := map[int64]int64{}
	var taken []store.QueueName
	round := loop.NewCensus(r, &followed{now: now}, uuid.New(), "here", func(q store.QueueName) { taken = append(taken, q) }, clk, zap.NewNop()).Round

	require.NoError(t, round(t.Context())) // nobody subscribes, nothing is written
	now[7] = 2
	r.broken = true
	require.Error(t, round(t.Context()))
	require.Empty(t, r.claims, "what keeps a route from the others was not written")
	r.broken, r.unclaimed = false, true
	require.Error(t, round(t.Context()))
	r.unclaimed = false
	require.NoError(t, round(t.Context())) // both again
	require.NoError(t, round(t.Context())) // no change
	clk.Advance(5 * time.Second)
	require.NoError(t, round(t.Context())) // renewed
	delete(now, 7)
	require.NoError(t, round(t.Context()))
	clk.Advance(time.Minute)
	require.NoError(t, round(t.Context()))

	require.Equal(t, []map[int64]int64{{7: 2}, {7: 2}, {7: 2}, {}}, r.puts)
	require.Equal(t, [][]int64{{7}, {7}}, r.claims)
	require.Equal(t, []store.QueueName{{Tenant: "acme", Queue: "here"}, {Tenant: "acme", Queue: "here"}}, taken)
	require.Equal(t, 3, r.expired)
}

// arriving is what a dispatcher serves that has no subscriber until some is true.
type arriving struct {
	some  atomic.Bool
	first chan struct{}
}

func (a *arriving) Subscribers() map[int64]int64 {
	if a.some.Load() {
		return map[int64]int64{7: 1}
	}
	return nil
}

func (a *arriving) FirstSubscribers() <-chan struct{} { return a.first }

func TestTheFirstSubscriberOfAQueueIsWrittenAndItsRouteClaimedAtOnce(t *testing.T) {
	t.Parallel()
	r, a := &register{}, &arriving{first: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	taken, ended := make(chan struct{}), make(chan error, 1)
	clk := clock.NewFake(time.Unix(0, 0)) // nothing but a token makes a round
	c := loop.NewCensus(r, a, uuid.New(), "here", func(store.QueueName) { close(taken) }, clk, zap.NewNop())
	go func() { ended <- c.Run(ctx) }()
	a.first <- struct{}{} // taken after the round that Run begins with
	a.some.Store(true)

	a.first <- struct{}{}

	<-taken
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, [][]int64{{7}}, r.claims)
}
