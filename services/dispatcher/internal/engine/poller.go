package engine

import (
	"context"
	"sync"
	"time"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

// pollState paces the polls of one group. It is guarded by poller.mu.
type pollState struct {
	watched  bool
	urgent   bool // asked for now
	interval time.Duration
	due      time.Time
}

// poller looks at heads and versions of all shards that somebody waits on, in one statement for all of them: at once when a pop arrives or a hint comes, else
// RepollMin after a miss, doubling to RepollMax. It is what makes hints a matter of latency only.
type poller struct {
	e    *Engine
	wake chan struct{}

	mu      sync.Mutex // guards the rest and every group's pollState
	groups  map[*group]struct{}
	arrived uint64 // counts the pops that arrived; a round covers those up to its number
	retry   time.Time
}

func newPoller(e *Engine) *poller {
	return &poller{e: e, wake: make(chan struct{}, 1), groups: map[*group]struct{}{}}
}

// arrival numbers a new pop.
func (p *poller) arrival() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrived++
	return p.arrived
}

// watch keeps a group in the rounds for as long as pops wait on it; urgent asks for a round now.
func (p *poller) watch(g *group, urgent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &g.poll
	if !s.watched {
		s.watched, s.interval = true, p.e.cfg.RepollMin
		s.due = p.e.clk.Now().Add(p.jitter(s.interval))
		p.groups[g] = struct{}{}
	}
	if urgent {
		s.urgent = true
	}
	p.signal()
}

// hint asks for a round now, if anybody waits on the group.
func (p *poller) hint(g *group) {
	if g.hasParked() {
		p.watch(g, true)
	}
}

// each calls fn for every group on which pops wait.
func (p *poller) each(fn func(*group)) {
	p.mu.Lock()
	groups := make([]*group, 0, len(p.groups))
	for g := range p.groups {
		groups = append(groups, g)
	}
	p.mu.Unlock()
	for _, g := range groups {
		fn(g)
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
		groups, round, wait := p.next()
		if len(groups) > 0 {
			p.round(ctx, groups, round)
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

// next returns what is due now, or how long to wait. A round takes along what is due within half an interval, so that idle groups fall into step and
// cost one statement together.
func (p *poller) next() (groups []*group, round uint64, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.e.clk.Now()
	if now.Before(p.retry) {
		return nil, 0, p.retry.Sub(now)
	}
	wait = time.Hour
	ripe := false
	for g := range p.groups {
		if !g.hasParked() {
			g.poll = pollState{}
			delete(p.groups, g)
			continue
		}
		if g.poll.urgent || !g.poll.due.After(now) {
			ripe = true
		}
		wait = min(wait, g.poll.due.Sub(now))
	}
	if !ripe {
		return nil, 0, max(wait, time.Millisecond)
	}
	for g := range p.groups {
		if g.poll.urgent || g.poll.due.Sub(now) <= g.poll.interval/2 {
			g.poll.urgent = false
			groups = append(groups, g)
		}
	}
	return groups, p.arrived, 0
}

// round runs one statement for the groups and spreads what it found.
func (p *poller) round(ctx context.Context, groups []*group, round uint64) {
	shards := make(map[message.ShardID]message.Offset, len(groups))
	versions := make(map[window.GroupShardID]window.Version, len(groups))
	for _, g := range groups {
		for _, s := range g.shards {
			shards[s.shard.id] = message.Offset(s.shard.head.Load())
			versions[s.id] = window.Version(s.version.Load())
		}
	}
	sctx, cancel := context.WithTimeout(ctx, p.e.cfg.StatementTimeout)
	heads, now, err := p.e.db.Poll(sctx, shards, versions)
	cancel()
	p.e.metrics.polls.Inc()
	if err != nil {
		p.failed(ctx, groups, err)
		return
	}
	for _, g := range groups {
		p.spread(g, heads, now, round)
	}
}

func (p *poller) spread(
	g *group, heads map[message.ShardID]store.Head, versions map[window.GroupShardID]window.Version, round uint64,
) {
	news := false
	for _, s := range g.shards {
		head, ok := heads[s.shard.id]
		version, there := versions[s.id]
		fresh := ok && s.shard.raise(head.Head)
		if fresh {
			s.shard.wake()
		}
		if s.suspect(version, there) || fresh {
			news = true
			s.wake()
		}
	}
	p.mu.Lock()
	st := &g.poll
	if news {
		st.interval = p.e.cfg.RepollMin
	} else {
		st.interval = min(2*st.interval, p.e.cfg.RepollMax)
	}
	st.due = p.e.clk.Now().Add(p.jitter(st.interval))
	p.mu.Unlock()
	g.told(round, news)
}

// failed leaves the groups due and waits a moment. Pops that would not wait are told.
func (p *poller) failed(ctx context.Context, groups []*group, err error) {
	if ctx.Err() == nil {
		p.e.trouble("poll", err)
	}
	p.mu.Lock()
	p.retry = p.e.clk.Now().Add(p.jitter(p.e.cfg.RepollMin))
	for _, g := range groups {
		g.poll.urgent = true
	}
	p.mu.Unlock()
	for _, g := range groups {
		g.failUnchecked(&UnavailableError{Err: err})
	}
}
