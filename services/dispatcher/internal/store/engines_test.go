package store_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/domain/window/windowtest"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	engineCount   = 3
	consumerCount = 24
	wantChanges   = 100_000
	leastChanges  = 15_000           // on a machine that is slow or busy
	engineTime    = 50 * time.Second // after which what was done is enough
)

// TestThreeEnginesOnOneDatabaseKeepEveryPromise runs three small engines with skewed clocks on the same four groups. Their consumers ack all or part, nack,
// reject, renew, release, come too late or never again, each time through whichever engine. The history is replayed in version order against the
// model: order and one lease per key, nothing settled again, no dead lease accepted, nothing early, no refusal that was not true.
func TestThreeEnginesOnOneDatabaseKeepEveryPromise(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := newArena(b)

	ctx, stop := context.WithTimeout(t.Context(), engineTime)
	defer stop()
	var group errgroup.Group
	group.Go(func() error { return a.push(ctx) })
	for i := range engineCount {
		_, s := b.open(nil)
		for _, g := range a.groups {
			e := &engine{
				arena: a, group: g, store: s, skew: time.Duration(i-1) * 20 * time.Millisecond,
				rnd: rand.New(rand.NewPCG(uint64(i), uint64(g.id))),
			}
			group.Go(func() error { return e.run(ctx, stop) })
		}
	}
	require.NoError(t, group.Wait())

	total := int(a.changes.Load())
	t.Logf("%d changes, %d under the lock, %d lost races, %d too early; %d messages", total, a.locked.Load(), a.lost.Load(), a.early.Load(), a.log.Head())
	require.GreaterOrEqual(t, total, leastChanges)
	for _, g := range a.groups {
		g.finish()
		t.Logf("group %s/%s: version %d, %d refusals, low %d", g.policy.Mode, g.policy.OnFailure, g.max, g.refusals, g.low)
		for i, v := range g.checker.Violations() {
			if i < 10 {
				t.Errorf("%s/%s: %s", g.policy.Mode, g.policy.OnFailure, v)
			}
		}
		require.EqualValues(t, g.max, scan[int64](b, "SELECT version FROM dispatcher.group_shards WHERE id = $1", g.id), "a change without a record")
	}
	require.Equal(t, int(a.letters.Load()), scan[int](b, "SELECT count(*) FROM dispatcher.dead_letters"))
}

// arena is what the engines share: the log and the groups with their consumers.
type arena struct {
	bench  *bench
	shard  message.ShardID
	groups []*arenaGroup

	mu  sync.RWMutex // guards log
	log windowtest.Log

	changes, locked, lost, early, letters atomic.Int64
}

// arenaGroup is one group's state: its consumers, and the history so far.
type arenaGroup struct {
	id     lease.GroupShardID
	policy window.Policy

	mu       sync.Mutex // guards all below
	idle     []*consumer
	checker  *windowtest.Checker
	pending  map[window.Version][]windowtest.Record
	next     window.Version // the first that is not checked
	max      window.Version
	low      window.Offset
	refusals int
}

// consumer holds at most one lease.
type consumer struct {
	epoch window.Epoch
	open  []window.Message
}

func newArena(b *bench) *arena {
	a := &arena{bench: b, shard: b.shard()}
	for _, p := range []struct {
		mode queue.Mode
		fail queue.OnFailure
	}{{queue.Ordered, queue.Block}, {queue.Ordered, queue.Skip}, {queue.Shared, queue.Block}, {queue.Ordered, queue.Block}} {
		g := &arenaGroup{
			id:      b.groupShard(a.shard),
			policy:  window.Policy{Mode: p.mode, OnFailure: p.fail, MaxAttempts: 3, Backoff: queue.Backoff{Base: 5 * time.Millisecond, Cap: 40 * time.Millisecond}},
			pending: make(map[window.Version][]windowtest.Record), next: 1, max: 1,
		}
		g.checker = windowtest.NewChecker(g.policy, 0, a.hash)
		for range consumerCount {
			g.idle = append(g.idle, &consumer{})
		}
		a.groups = append(a.groups, g)
	}
	return a
}

func (a *arena) hash(off window.Offset) (uint64, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.log.Hash(off)
}

// push keeps some messages in front of the slowest group. Few keys have most of them.
func (a *arena) push(ctx context.Context) error {
	rnd := rand.New(rand.NewPCG(7, 7))
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	var head window.Offset
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		behind := window.Offset(0)
		for _, g := range a.groups {
			g.mu.Lock()
			behind = max(behind, g.low)
			g.mu.Unlock()
		}
		if head-behind > 2000 {
			continue
		}
		hashes := make([]uint64, 1+rnd.IntN(60))
		for i := range hashes {
			if hashes[i] = uint64(rnd.IntN(1 + rnd.IntN(60))); rnd.IntN(4) == 0 {
				hashes[i] = rnd.Uint64()
			}
		}
		append1 := appendOf(a.shard, hashes...)
		append1.Known = head
		results, err := a.bench.store.Flush(context.WithoutCancel(ctx), []store.Append{append1})
		if err != nil {
			return err
		}
		a.mu.Lock()
		head = a.log.Append(hashes...)
		a.mu.Unlock()
		if want := results[0].Base + message.Offset(len(hashes)); head != want {
			return fmt.Errorf("head %d, want %d", head, want)
		}
	}
}

// checkLag is how many versions a record may be late.
const checkLag = 3000

// record takes one part of the history; parts come in about the order of versions.
func (g *arenaGroup) record(r windowtest.Record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending[r.Change.From] = append(g.pending[r.Change.From], r)
	if r.Change.Empty() {
		g.refusals++
		return
	}
	g.max, g.low = max(g.max, r.Change.To), max(g.low, r.Change.Low)
	for g.next+checkLag < g.max {
		g.check()
	}
}

// check replays what is known of the next version. The lock is held.
func (g *arenaGroup) check() {
	records := g.pending[g.next]
	delete(g.pending, g.next)
	slices.SortStableFunc(records, func(x, y windowtest.Record) int { return int(x.Change.To - y.Change.To) })
	for _, r := range records {
		g.checker.Check(r)
	}
	g.next++
}

func (g *arenaGroup) finish() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.next <= g.max {
		g.check()
	}
}

// engine is the smallest one: a view of one group, the fast way, and the slow one after lost races.
type engine struct {
	arena *arena
	group *arenaGroup
	store *store.Store
	rnd   *rand.Rand
	skew  time.Duration

	view    *window.View
	foreign uint8 // the last eight commits: a bit where another's version was met
}

func (e *engine) run(ctx context.Context, stop func()) error {
	for ctx.Err() == nil {
		if e.rnd.IntN(300) == 0 {
			e.view = nil // a crash: the view is lost, and the consumers below lose their leases
		}
		users := e.take(1 + e.rnd.IntN(5))
		requests := make([]window.Request, len(users))
		for i, c := range users {
			requests[i] = e.wish(c)
		}
		if err := e.serve(context.WithoutCancel(ctx), users, requests); err != nil {
			return err
		}
		e.group.mu.Lock()
		e.group.idle = append(e.group.idle, users...)
		e.group.mu.Unlock()
		if e.arena.changes.Load() >= wantChanges {
			stop()
		}
		if e.rnd.IntN(60) == 0 { // leaves the others alone for a while, so that they go the fast way
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(e.rnd.IntN(400)) * time.Millisecond):
			}
		}
	}
	return nil
}

// take borrows consumers that wait for nothing.
func (e *engine) take(n int) []*consumer {
	g := e.group
	g.mu.Lock()
	defer g.mu.Unlock()
	n = min(n, len(g.idle))
	e.rnd.Shuffle(len(g.idle), func(i, j int) { g.idle[i], g.idle[j] = g.idle[j], g.idle[i] })
	users := slices.Clone(g.idle[:n])
	g.idle = g.idle[n:]
	return users
}

// serve makes one change of all requests and tells the consumers.
func (e *engine) serve(ctx context.Context, users []*consumer, requests []window.Request) error {
	if e.view != nil && e.foreign == 0 || e.view != nil && e.rnd.IntN(16) == 0 {
		done, err := e.fast(ctx, users, requests)
		if done || err != nil {
			return err
		}
	}
	return e.slow(ctx, users, requests)
}

func (e *engine) now() window.DBTime { return window.DBTimeOf(time.Now().Add(e.skew)) }

// plan feeds the view and plans.
func (e *engine) plan(now window.DBTime, requests []window.Request) (window.Change, []window.Outcome) {
	e.arena.mu.RLock()
	for _, r := range requests {
		if pop, ok := r.(*window.Pop); ok {
			e.arena.log.Supply(e.view, pop)
		}
	}
	e.arena.mu.RUnlock()
	change, outcomes := e.view.Plan(now, e.rnd.Float64, requests)
	for i := range change.DeadLetters {
		change.DeadLetters[i].ID = uuid.Must(uuid.NewV7())
	}
	return change, outcomes
}

// fast tries the change from memory. It is not done after a lost race, when it was too early, or when it would only refuse.
func (e *engine) fast(ctx context.Context, users []*consumer, requests []window.Request) (bool, error) {
	change, outcomes := e.plan(e.now(), requests)
	if change.Empty() {
		return false, nil
	}
	results, err := e.store.Work(ctx, []window.Change{change})
	if err != nil {
		return false, err
	}
	if !results[0].Applied {
		if results[0].Early(&change) {
			e.arena.early.Add(1)
		} else {
			e.arena.lost.Add(1)
			e.met(true)
		}
		return false, nil
	}
	e.met(false)
	e.applied(change, results[0], users, requests, outcomes)
	return true, nil
}

// met remembers whether a commit met another's version.
func (e *engine) met(foreign bool) {
	e.foreign <<= 1
	if foreign {
		e.foreign |= 1
	}
}

// slow makes the change under the lock. What is too early there is given up: the consumers ask again.
func (e *engine) slow(ctx context.Context, users []*consumer, requests []window.Request) error {
	var outcomes []window.Outcome
	known, before := window.Known{}, window.Version(0)
	if e.view != nil {
		known, before = e.view.Known(), e.view.Version()
	}
	foreign := false
	change, result, err := e.store.WorkLocked(ctx, e.group.id, known, func(state store.State) (window.Change, error) {
		foreign = before != 0 && before != state.Row.Version
		if err := e.adopt(state); err != nil {
			return window.Change{}, err
		}
		var c window.Change
		c, outcomes = e.plan(state.Now, requests)
		return c, nil
	})
	if errors.Is(err, errReload) {
		e.view = nil
		return e.slow(ctx, users, requests)
	}
	if err != nil {
		return err
	}
	e.met(foreign)
	e.arena.locked.Add(1)
	switch {
	case change.Empty():
		e.group.record(windowtest.Record{Change: change, Requests: requests, Outcomes: outcomes})
		e.tell(users, requests, outcomes)
	case result.Applied:
		e.applied(change, result, users, requests, outcomes)
	default:
		e.arena.early.Add(1)
	}
	return nil
}

var errReload = errors.New("the view cannot be brought up to date")

func (e *engine) adopt(state store.State) (err error) {
	if e.view == nil {
		e.view, err = window.Load(state.Snapshot, e.group.policy)
		return err
	}
	if e.view.Refresh(state.Snapshot) != nil {
		return errReload
	}
	return nil
}

func (e *engine) applied(change window.Change, result store.WorkResult, users []*consumer, requests []window.Request, outcomes []window.Outcome) {
	e.view.Commit(change, result.Stamp)
	e.arena.changes.Add(1)
	e.arena.letters.Add(int64(len(change.DeadLetters)))
	e.group.record(windowtest.Record{Change: change, At: result.Stamp.At, Requests: requests, Outcomes: outcomes})
	e.tell(users, requests, outcomes)
}
