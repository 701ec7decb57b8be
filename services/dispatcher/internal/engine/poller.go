package engine

import (
	"context"
	"sync"
	"time"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

// pollState paces the polls of one watched. It is guarded by poller.mu.
type pollState struct {
	watched  bool
	urgent   bool // asked for now
	interval time.Duration
	due      time.Time
}

// watched is what the poller keeps an eye on: a group on which pops wait, or a log that is followed.
type watched interface {
	// belongs returns the queue it is of.
	belongs() *catalog.Queue
	// pace is its place in the rounds, guarded by poller.mu.
	pace() *pollState
	// wanted says that somebody still waits on it.
	wanted() bool
	// known adds what it wants to hear about to the question, with what it knows of it.
	known(q *question)
	// found tells it the answer. It reports whether there was news.
	found(q *question, heads map[message.ShardID]store.Head, versions map[window.GroupShardID]window.Version) (news bool)
	// told ends the round numbered so, for those who arrived before it began.
	told(round uint64, news bool)
	// failUnchecked says that the database cannot be asked.
	failUnchecked(err error)
}

// question is what one round asks, with what was known when it was asked.
type question struct {
	shards   map[message.ShardID]message.Offset
	versions map[window.GroupShardID]window.Version
}

// shard asks for the head of a shard. Of several who ask, the one who knows least counts: what is news to anybody is found.
func (q *question) shard(s *shard) {
	head := message.Offset(s.head.Load())
	if known, ok := q.shards[s.id]; !ok || head < known {
		q.shards[s.id] = head
	}
}

// news raises the shard's head to what was found, and wakes all who wait for that. It reports whether the head was not known when it was asked for: then
// it is news to everybody who asked, although another of them may have raised it first.
func (q *question) news(s *shard, heads map[message.ShardID]store.Head) bool {
	found, ok := heads[s.id]
	if ok && s.raise(found.Head) {
		s.wake()
	}
	return ok && found.Head > q.shards[s.id]
}

// poller looks at heads and versions of all shards that somebody waits on, in one statement for all of them: at once when a pop arrives or a hint comes, else
// RepollMin after a miss, doubling to RepollMax. It is what makes hints a matter of latency only.
type poller struct {
	e    *Engine
	wake chan struct{}

	mu      sync.Mutex // guards the rest and every pollState
	watches map[watched]struct{}
	arrived uint64 // counts the pops that arrived; a round covers those up to its number
	retry   time.Time
}

func newPoller(e *Engine) *poller {
	return &poller{e: e, wake: make(chan struct{}, 1), watches: map[watched]struct{}{}}
}

// arrival numbers a new pop.
func (p *poller) arrival() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrived++
	return p.arrived
}

// watch keeps w in the rounds for as long as it is wanted; urgent asks for a round now.
func (p *poller) watch(w watched, urgent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := w.pace()
	if !s.watched {
		s.watched, s.interval = true, p.e.cfg.RepollMin
		s.due = p.e.clk.Now().Add(p.jitter(s.interval))
		p.watches[w] = struct{}{}
	}
	if urgent {
		s.urgent = true
	}
	p.signal()
}

// hint asks for a round now, if anybody waits.
func (p *poller) hint(w watched) {
	if w.wanted() {
		p.watch(w, true)
	}
}

// each calls fn for everything that is waited on.
func (p *poller) each(fn func(watched)) {
	p.mu.Lock()
	all := make([]watched, 0, len(p.watches))
	for w := range p.watches {
		all = append(all, w)
	}
	p.mu.Unlock()
	for _, w := range all {
		fn(w)
	}
}

// signal needs p.mu.
func (p *poller) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *poller) jitter(d time.Duration) time.Duration { return clock.Jitter(p.e.rand, d, 0.2) }

// run polls until ctx ends.
func (p *poller) run(ctx context.Context) error {
	timer := p.e.clk.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		ripe, round, wait := p.next()
		if len(ripe) > 0 {
			p.round(ctx, ripe, round)
			continue
		}
		timer.Reset(wait)
		select {
		case <-p.wake:
		case <-timer.C():
		case <-ctx.Done():
			return nil
		}
	}
}

// next returns what is due now, or how long to wait. A round takes along what is due within half an interval, so that what is idle falls into step and
// costs one statement together.
func (p *poller) next() (due []watched, round uint64, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.e.clk.Now()
	if now.Before(p.retry) {
		return nil, 0, p.retry.Sub(now)
	}
	wait = time.Hour
	ripe := false
	for w := range p.watches {
		s := w.pace()
		if !w.wanted() {
			*s = pollState{}
			delete(p.watches, w)
			continue
		}
		if s.urgent || !s.due.After(now) {
			ripe = true
		}
		wait = min(wait, s.due.Sub(now))
	}
	if !ripe {
		return nil, 0, max(wait, time.Millisecond)
	}
	for w := range p.watches {
		if s := w.pace(); s.urgent || s.due.Sub(now) <= s.interval/2 {
			s.urgent = false
			due = append(due, w)
		}
	}
	return due, p.arrived, 0
}

// round runs one statement for all that is due and spreads what it found.
func (p *poller) round(ctx context.Context, due []watched, round uint64) {
	q := &question{
		shards:   make(map[message.ShardID]message.Offset, len(due)),
		versions: make(map[window.GroupShardID]window.Version, len(due)),
	}
	for _, w := range due {
		w.known(q)
	}
	sctx, cancel := context.WithTimeout(ctx, p.e.cfg.StatementTimeout)
	heads, now, err := p.e.db.Poll(sctx, q.shards, q.versions)
	cancel()
	p.e.metrics.polls.Inc()
	if err != nil {
		p.failed(ctx, due, err)
		return
	}
	for _, w := range due {
		news := w.found(q, heads, now)
		p.again(w, news)
		w.told(round, news)
	}
}

// again says when w is due next.
func (p *poller) again(w watched, news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := w.pace()
	if news {
		s.interval = p.e.cfg.RepollMin
	} else {
		s.interval = min(2*s.interval, p.e.cfg.RepollMax)
	}
	s.due = p.e.clk.Now().Add(p.jitter(s.interval))
}

// failed leaves what was asked for due and waits a moment. Pops that would not wait are told.
func (p *poller) failed(ctx context.Context, due []watched, err error) {
	if ctx.Err() == nil {
		p.e.trouble("poll", err)
	}
	p.mu.Lock()
	p.retry = p.e.clk.Now().Add(p.jitter(p.e.cfg.RepollMin))
	for _, w := range due {
		w.pace().urgent = true
	}
	p.mu.Unlock()
	for _, w := range due {
		w.failUnchecked(&UnavailableError{Err: err})
	}
}
