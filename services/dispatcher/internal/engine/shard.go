package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// shard is what is known of one physical log, shared by the groups that use it here.
type shard struct {
	id   message.ShardID
	head atomic.Int64 // an offset below which everything is committed; the true head is there or further

	mu    sync.Mutex // guards the rest
	users []*gshard
	tails []*Tail
}

// raise notes that everything below head is committed. It reports whether that is news.
func (s *shard) raise(head message.Offset) bool {
	for {
		old := s.head.Load()
		if int64(head) <= old {
			return false
		}
		if s.head.CompareAndSwap(old, int64(head)) {
			return true
		}
	}
}

// wake tells every group that uses the shard here, and who follows it, that there is something new.
func (s *shard) wake() {
	s.mu.Lock()
	users, tails := s.users, s.tails
	s.mu.Unlock()
	for _, t := range tails {
		t.wake()
	}
	for _, g := range users {
		g.wake()
	}
}

// follow has t told of what is new.
func (s *shard) follow(t *Tail) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tails = append(s.tails[:len(s.tails):len(s.tails)], t) // wake reads the old slice without the lock
}

// replace ends those who follow it: another database answers.
func (s *shard) replace() {
	s.mu.Lock()
	tails := s.tails
	s.mu.Unlock()
	for _, t := range tails {
		t.replace()
	}
}

func (s *shard) unfollow(t *Tail) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tails = slices.DeleteFunc(slices.Clone(s.tails), func(o *Tail) bool { return o == t })
}

func (s *shard) join(g *gshard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users = append(s.users[:len(s.users):len(s.users)], g) // wake reads the old slice without the lock
}

func (s *shard) leave(g *gshard) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := make([]*gshard, 0, len(s.users))
	for _, u := range s.users {
		if u != g {
			kept = append(kept, u)
		}
	}
	s.users = kept
}

// gshard is the state of one group on one shard as this process has it: the view, what waits to be planned on it, and whether somebody works on it.
//
//	         submit, wake                    lane or slow path takes it
//	idle ------------------> queued ------------------------------------> busy
//	  ^                        ^                                           |
//	  |                        +---- more came meanwhile ------------------+
//	  +----------------------------- nothing more -------------------------+
//
// A transaction, which needs several at once, takes them with claim, in the order of their ids: from idle at once, else when whoever is busy ends.
//
// There is one change in flight at most: it is made by whoever holds the busy state, and the view is touched by nobody else.
type gshard struct {
	id    window.GroupShardID
	index int // which shard of the queue it is
	grp   *group
	shard *shard
	lane  *workLane

	// seq grows whenever something may have become ready, before the waiters are looked at. A pop that parks compares it with what it was before its
	// plan, so that no wake falls between.
	seq atomic.Uint64
	// version is the view's, or that of the change in flight; 0 without a view. The poller compares it with the row's.
	version atomic.Int64
	// wakeAt is when something of the view comes due (a retry, an expiry); 0 means never.
	wakeAt atomic.Int64

	mu      sync.Mutex // guards the next eight
	closed  bool       // the engine has ended
	state   gshardState
	pending []*request
	feed    bool            // take parked pops into the next plan
	stale   bool            // the row was seen with another version: refresh before planning
	singles int             // that many requests are planned one by one, to find the one at fault
	reset   bool            // another database answers: the view is of one that is gone
	claims  []chan struct{} // of who waits for the busy state, in order; each is closed when it is handed over

	// Below belongs to the holder of the busy state.
	view     *window.View
	foreign  uint8          // one bit for each of the last 8 commits: it met a version of somebody else
	unsure   bool           // nobody knows whether the last change happened
	doubtful []window.Epoch // leases that it may have granted
	bytes    int64          // of the view, as last accounted; guarded by views.mu
}

type gshardState uint8

const (
	idle gshardState = iota
	queued
	busy
)

// request is one wish of one caller, on its way through a plan.
type request struct {
	want window.Request
	// dropped is asked before each plan; true means that nobody wants it any more. nil means never.
	dropped func() bool
	// done is told the end exactly once, outside of all locks. at is the instant of the commit that carried it, 0 if there was none to write. seq is
	// gshard.seq as it was before the plan.
	done func(out window.Outcome, at window.DBTime, seq uint64, err error)
	// held is what the lease held when a change with this request was lost sight of; see gshard.doubt.
	held []window.Offset
}

// submit queues a request for the next plan. False means that the engine has ended, and done is not called.
func (g *gshard) submit(r *request) bool {
	ok := g.put(r)
	g.nudge()
	return ok
}

// put is submit of a request that waits for another to bring it along, or for nudge.
func (g *gshard) put(r *request) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.pending = append(g.pending, r)
	}
	return !g.closed
}

// nudge has what is pending planned.
func (g *gshard) nudge() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.pending) > 0 {
		g.schedule()
	}
}

// wake says that something may have become ready. It is cheap when nobody waits.
func (g *gshard) wake() {
	g.seq.Add(1)
	if !g.grp.hasParked() {
		return
	}
	g.mu.Lock()
	g.feed = true
	g.schedule()
	g.mu.Unlock()
}

// refeed passes a wake on: the pop that it was for did without this shard.
func (g *gshard) refeed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.feed = true
	g.schedule()
}

// suspect compares the version that a poll saw with the one known; there is false if the poll found no row, which is how a deleted group looks. It
// reports whether the view has to be looked at.
func (g *gshard) suspect(version window.Version, there bool) bool {
	if there && int64(version) <= g.version.Load() {
		return false
	}
	g.mu.Lock()
	g.stale = true
	g.mu.Unlock()
	return true
}

// schedule needs g.mu.
func (g *gshard) schedule() {
	if g.state == idle {
		g.state = queued
		g.lane.push(g)
	}
}

// claim waits for the busy state and takes it; the caller MUST release it. Whoever claims several does so in the order of their ids, so that no two wait for
// each other.
func (g *gshard) claim(ctx context.Context) error {
	g.mu.Lock()
	if g.closed || g.state == idle {
		defer g.mu.Unlock()
		if g.closed {
			return ErrDraining
		}
		g.state = busy
		return nil
	}
	turn := make(chan struct{})
	g.claims = append(g.claims, turn)
	g.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	at := slices.Index(g.claims, turn)
	if at >= 0 {
		g.claims = slices.Delete(g.claims, at, at+1)
	}
	g.mu.Unlock()
	if at < 0 {
		g.release() // it was handed over meanwhile
	}
	return context.Cause(ctx)
}

// release ends the busy state, or hands it over to who claims it; what came meanwhile is queued.
func (g *gshard) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.claims) > 0 {
		close(g.claims[0])
		g.claims = g.claims[1:]
		return
	}
	g.state = idle
	if len(g.pending) > 0 || g.feed {
		g.schedule()
	}
}

// refuse answers everything that is pending, and all that comes later, with ErrDraining. Nobody works on the group-shard any more.
func (g *gshard) refuse() {
	g.mu.Lock()
	g.closed = true
	requests := g.pending
	g.pending = nil
	g.mu.Unlock()
	for _, r := range requests {
		r.done(window.Outcome{}, 0, g.seq.Load(), ErrDraining)
	}
}

// putBack returns requests to the front of what is pending: their order among themselves and before newer ones is kept.
func (g *gshard) putBack(rs []*request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending = append(rs[:len(rs):len(rs)], g.pending...)
}

// met notes whether a commit met somebody else's version.
func (g *gshard) met(foreign bool) {
	g.foreign <<= 1
	if foreign {
		g.foreign |= 1
	}
}

// contended says that one of the last 8 commits met somebody else's version: lock first, read after.
func (g *gshard) contended() bool { return g.foreign != 0 }
