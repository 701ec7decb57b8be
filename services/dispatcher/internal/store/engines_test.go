package store_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"postrider.dev/pkg/run/runtest"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/domain/window/windowtest"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	engineCount   = 3
	queueCount    = 2
	groupCount    = 12
	consumerCount = 24 // of each group
)

// wantChanges is how long the history is. The full one is made without the race detector (scripts/test).
func wantChanges() int64 { return runtest.Volume[int64](100_000, 5_000) }

// engineTime is only there to end a test that hangs.
const engineTime = 15 * time.Minute

// TestThreeEnginesOnOneDatabaseKeepEveryPromise runs three small engines with skewed clocks on the same twelve groups, several of which each changes in one
// transaction. Their consumers ack all or part, nack, reject, renew, release, come too late or never again, each time through whichever engine. Now and
// then a group, or one key of it, is moved, and now and then what several groups of both queues settle is committed together with pushes, or refused as a
// whole. The history is replayed in version order against the model: order and one lease per key, nothing settled again, no dead lease accepted, nothing early, no refusal that was not true.
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
		e := newEngine(a, s, i)
		group.Go(func() error { return e.run(ctx, stop) })
	}
	require.NoError(t, group.Wait())

	total := int(a.changes.Load())
	t.Logf("%d changes, %d under the lock, %d lost races, %d too early; %d and %d messages", total, a.locked.Load(), a.lost.Load(), a.early.Load(), a.logs[0].head(), a.logs[1].head())
	require.GreaterOrEqual(t, int64(total), wantChanges())
	t.Logf("%v", a.kinds.counts)
	for _, kind := range wantKinds() {
		require.Positive(t, a.kinds.counts[kind], kind)
	}
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
	for _, l := range a.logs {
		require.Empty(t, l.early)
		require.EqualValues(t, l.head(), scan[int64](b, "SELECT head FROM dispatcher.shards WHERE id = $1", l.shard), "messages without a commit that is known")
	}
	require.Equal(t, int(a.letters.Load()), scan[int](b, "SELECT count(*) FROM dispatcher.dead_letters"))
}

// engine is the smallest one: a view of each group, the fast way, and the slow one after lost races.
type engine struct {
	arena  *arena
	seats  []*seat
	index  int
	store  *store.Store
	rnd    *rand.Rand
	skew   time.Duration
	began  time.Time
	want   int64 // changes of all engines together
	joints int   // transactions so far
}

// seat is what an engine has of one group.
type seat struct {
	*arenaGroup

	view    *window.View
	foreign uint8 // the last eight commits: a bit where another's version was met
}

// turn is one round of a seat: consumers, their wishes, and what was planned about them.
type turn struct {
	*seat

	users    []*consumer
	requests []window.Request
	outcomes []window.Outcome
}

func newEngine(a *arena, s *store.Store, i int) *engine {
	e := &engine{arena: a, index: i, store: s, skew: time.Duration(i-1) * 20 * time.Millisecond, began: time.Now(), want: wantChanges()}
	e.rnd = rand.New(rand.NewPCG(uint64(i), 1))
	for _, g := range a.groups {
		e.seats = append(e.seats, &seat{arenaGroup: g})
	}
	return e
}

func (e *engine) run(ctx context.Context, stop func()) error {
	defer stop() // one that fails ends the history
	for ctx.Err() == nil && e.arena.changes.Load() < e.want {
		serve, turns := e.serve, e.turns()
		if e.rnd.IntN(8) == 0 {
			serve, turns = e.transact, e.parties(turns)
		}
		err := serve(context.WithoutCancel(ctx), turns)
		for _, t := range turns {
			t.giveBack()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// turns picks some groups: mostly those that lean to this engine just now, and now and then another's.
func (e *engine) turns() []*turn {
	shift := int(time.Since(e.began) / (2 * time.Second))
	var turns []*turn
	for i, s := range e.seats {
		if mine := (i+shift)%engineCount == e.index; e.rnd.IntN(100) > 0 && (!mine || e.rnd.IntN(3) == 0) {
			continue
		}
		if e.rnd.IntN(400) == 0 {
			e.arena.kinds.saw("engine crash")
			s.view = nil
		}
		if e.rnd.Int64N(max(1, e.want/wantSeeks)) == 0 {
			turns = append(turns, &turn{seat: s, requests: []window.Request{e.seekWish(s.log)}})
			continue
		}
		t := &turn{seat: s, users: s.take(e.rnd, 1+e.rnd.IntN(5))}
		for _, c := range t.users {
			t.requests = append(t.requests, e.wish(c))
		}
		turns = append(turns, t)
	}
	return turns
}

// take borrows consumers that wait for nothing.
func (g *arenaGroup) take(rnd *rand.Rand, n int) []*consumer {
	g.mu.Lock()
	defer g.mu.Unlock()
	n = min(n, len(g.idle))
	rnd.Shuffle(len(g.idle), func(i, j int) { g.idle[i], g.idle[j] = g.idle[j], g.idle[i] })
	users := slices.Clone(g.idle[:n])
	g.idle = g.idle[n:]
	return users
}

func (t *turn) giveBack() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.idle = append(t.idle, t.users...)
}

// serve makes a change for each turn: together from memory, where that may work, and the others one by one under the lock.
func (e *engine) serve(ctx context.Context, turns []*turn) error {
	var fast, slow []*turn
	var changes []window.Change
	for _, t := range turns {
		if t.view != nil && !t.seeks() && (t.foreign == 0 || e.rnd.IntN(16) == 0) {
			if change := e.plan(t, e.now()); !change.Empty() {
				fast, changes = append(fast, t), append(changes, change)
				continue
			}
		}
		slow = append(slow, t) // also what would only be refused: that is proven first
	}
	results, err := e.store.Work(ctx, changes)
	if err != nil {
		return err
	}
	for i, t := range fast {
		switch {
		case results[i].Applied:
			t.met(false)
			e.applied(t, changes[i], results[i])
			continue
		case results[i].Early(&changes[i]):
			e.arena.early.Add(1)
		default:
			e.arena.lost.Add(1)
			t.met(true)
		}
		slow = append(slow, t)
	}
	for _, t := range slow {
		if err := e.slow(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

func (e *engine) now() window.DBTime { return window.DBTimeOf(time.Now().Add(e.skew)) }

// plan feeds the view and plans.
func (e *engine) plan(t *turn, now window.DBTime) window.Change {
	t.log.mu.RLock()
	for _, r := range t.requests {
		switch r := r.(type) {
		case *window.Pop:
			t.log.log.Supply(t.view, r)
		case *window.Seek: // the row is locked: what is settled is in the log by now
			if r.Keyed {
				r.Members = t.log.log.Members(r.Hash)
			}
		}
	}
	t.log.mu.RUnlock()
	change, outcomes := t.view.Plan(now, e.rnd.Float64, t.requests)
	for i := range change.DeadLetters {
		change.DeadLetters[i].ID = uuid.Must(uuid.NewV7())
	}
	t.outcomes = outcomes
	return change
}

// met remembers whether a commit met another's version.
func (s *seat) met(foreign bool) {
	s.foreign <<= 1
	if foreign {
		s.foreign |= 1
	}
}

// slow makes the change under the lock. What is too early there is given up: the consumers ask again.
func (e *engine) slow(ctx context.Context, t *turn) error {
	known, before := window.Known{}, window.Version(0)
	if t.view != nil {
		known, before = t.view.Known(), t.view.Version()
	}
	foreign := false
	change, result, err := e.store.WorkLocked(ctx, t.id, known, func(state store.State) (window.Change, error) {
		foreign = before != 0 && before != state.Row.Version
		if err := t.adopt(state); err != nil {
			return window.Change{}, err
		}
		return e.plan(t, state.Now), nil
	})
	if errors.Is(err, errReload) {
		t.view = nil
		return e.slow(ctx, t)
	}
	if err != nil {
		return err
	}
	t.met(foreign)
	e.arena.locked.Add(1)
	switch {
	case change.Empty():
		t.record(windowtest.Record{Change: change, Requests: t.requests, Outcomes: t.outcomes})
		e.tell(t)
	case result.Applied:
		e.applied(t, change, result)
	default:
		e.arena.early.Add(1)
	}
	return nil
}

var errReload = errors.New("the view cannot be brought up to date")

func (s *seat) adopt(state store.State) (err error) {
	if s.view == nil {
		s.view, err = window.Load(state.Snapshot, s.policy)
		return err
	}
	if s.view.Refresh(state.Snapshot) != nil {
		return errReload
	}
	return nil
}

func (e *engine) applied(t *turn, change window.Change, result store.WorkResult) {
	t.view.Commit(change, result.Stamp)
	e.arena.changes.Add(1)
	e.arena.letters.Add(int64(len(change.DeadLetters)))
	t.record(windowtest.Record{Change: change, At: result.Stamp.At, Requests: t.requests, Outcomes: t.outcomes})
	e.tell(t)
}
