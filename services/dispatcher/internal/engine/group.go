package engine

import (
	"container/list"
	"sync"
	"sync/atomic"

	"postrider.dev/services/dispatcher/internal/domain/placement"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
)

// feedLimit is how many parked pops are taken into one plan. Those that get nothing are parked again.
const feedLimit = 64

// group is a consumer group as this process has it: its group-shards, and the pops parked on it.
type group struct {
	e       *Engine
	id      int64
	name    string
	rows    atomic.Pointer[groupRows]
	shards  []*gshard
	layout  placement.Layout
	usedAt  atomic.Int64  // UnixNano of a pop, the last one or nearly; see used
	turn    atomic.Uint32 // spreads pops over the shards
	parked  atomic.Int64  // how many wait; written under mu
	reading atomic.Bool   // somebody reads the options anew

	mu    sync.Mutex // guards the rest
	any   list.List  // *pop that take any partition, the one that waits longest first
	named map[uint64]*list.List
	poll  pollState
}

// groupRows is the newest known configuration.
type groupRows struct {
	queue *catalog.Queue
	group *catalog.Group
}

// policy is what the views need to know of the configuration.
func (r *groupRows) policy() window.Policy {
	return window.Policy{
		Mode: r.group.Mode, OnFailure: r.group.OnFailure,
		MaxAttempts: r.queue.Config.MaxAttempts, Backoff: r.queue.Config.Backoff,
		Trace: r.queue.Config.Trace, Delay: r.queue.Config.Delay,
	}
}

// adopt takes a newer configuration.
func (g *group) adopt(q *catalog.Queue, row *catalog.Group) {
	old := g.rows.Load()
	if old == nil || q.ConfigVersion > old.queue.ConfigVersion {
		g.rows.Store(&groupRows{queue: q, group: row})
	}
}

func (g *group) hasParked() bool { return g.parked.Load() > 0 }

// park makes p wait, unless something came up on a shard since p was planned there. It needs g.mu.
func (g *group) park(p *pop) {
	l := &g.any
	if p.want.Named {
		if l = g.named[p.want.Hash]; l == nil {
			l = list.New()
			g.named[p.want.Hash] = l
		}
	}
	p.place = insertByArrival(l, p)
	p.state = popParked
	g.parked.Add(1)
	g.e.metrics.parked.Inc()
	// From here on a wake finds p. What came up before is seen in seq.
	for i, s := range g.shards {
		if p.wants(i) && s.seq.Load() != p.seqs[i] {
			g.unpark(p)
			p.begin(i)
			return
		}
	}
	g.e.poller.watch(g, !p.checked)
	for _, s := range g.shards {
		g.e.alarm.set(s.wakeAt.Load())
	}
}

// unpark takes p out of the waiting ones and leaves it to the caller. It needs g.mu.
func (g *group) unpark(p *pop) {
	l := &g.any
	if p.want.Named {
		l = g.named[p.want.Hash]
	}
	l.Remove(p.place)
	if p.want.Named && l.Len() == 0 {
		delete(g.named, p.want.Hash)
	}
	p.place = nil
	p.state = popPlanning
	g.parked.Add(-1)
	g.e.metrics.parked.Dec()
}

// waiters counts the parked pops: those that take any partition, and the partitions that are waited for by name.
func (g *group) waiters() (anyone, named int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.any.Len(), len(g.named)
}

// failUnchecked ends the pops that would not wait and cannot be told anything.
func (g *group) failUnchecked(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fail := func(l *list.List) {
		for el := l.Front(); el != nil; {
			p := el.Value.(*pop) //nolint:forcetypeassert // the list holds nothing else
			el = el.Next()
			if p.noWait && !p.checked {
				g.unpark(p)
				p.finish(err)
			}
		}
	}
	fail(&g.any)
	for _, l := range g.named {
		fail(l)
	}
}

// endAll ends everything that is parked.
func (g *group) endAll(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	end := func(l *list.List) {
		for el := l.Front(); el != nil; el = l.Front() {
			p := el.Value.(*pop) //nolint:forcetypeassert // the list holds nothing else
			g.unpark(p)
			p.finish(err)
		}
	}
	end(&g.any)
	for _, l := range g.named {
		end(l)
	}
}

// take hands out requests for parked pops that this shard may serve: those that wait longest, and those whose partition ready approves.
func (g *group) take(s *gshard, ready func(hash uint64) bool) []*request {
	g.mu.Lock()
	defer g.mu.Unlock()
	var taken []*request
	n := 0
	claim := func(p *pop) {
		n++
		if r := g.claim(p, s); r != nil {
			taken = append(taken, r)
		}
	}
	for el := g.any.Front(); el != nil && n < feedLimit; el = g.any.Front() {
		claim(el.Value.(*pop)) //nolint:forcetypeassert // the list holds nothing else
	}
	for hash, l := range g.named {
		if n >= 2*feedLimit {
			break
		}
		p := l.Front().Value.(*pop) //nolint:forcetypeassert // the list holds nothing else
		if p.wants(s.index) && ready(hash) {
			claim(p)
		}
	}
	g.e.metrics.wakes.Add(float64(n))
	return taken
}

// claim returns the request of a parked pop for the shard that woke it; nil if it goes to a higher lane first, where something came up too. It needs g.mu.
func (g *group) claim(p *pop, s *gshard) *request {
	g.unpark(p)
	p.fed = true
	for i, higher := range g.shards {
		if g.layout.Priority(i) > g.layout.Priority(s.index) && p.wants(i) && higher.seq.Load() != p.seqs[i] {
			p.owes = s
			p.begin(i)
			return nil
		}
	}
	p.at, p.rest = s.index, nil
	return p.request()
}

// told says what a poll round found: the pops that arrived before it began may answer "nothing" from now on, once what is news has been looked at.
func (g *group) told(round uint64, news bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	tell := func(l *list.List) {
		for el := l.Front(); el != nil; {
			p := el.Value.(*pop) //nolint:forcetypeassert // the list holds nothing else
			el = el.Next()
			if p.checked || p.arrived > round {
				continue
			}
			p.checked = true
			switch {
			case !p.noWait: // stays, and is woken like all others
			case news:
				g.unpark(p)
				p.restart()
			default:
				g.unpark(p)
				p.finish(nil)
			}
		}
	}
	tell(&g.any)
	for _, l := range g.named {
		tell(l)
	}
}

// insertByArrival keeps the list in the order of arrival: a pop that was woken for nothing gets its place back.
func insertByArrival(l *list.List, p *pop) *list.Element {
	if last := l.Back(); last == nil || last.Value.(*pop).arrived < p.arrived { //nolint:forcetypeassert // the list holds nothing else
		return l.PushBack(p)
	}
	for el := l.Front(); el != nil; el = el.Next() {
		if el.Value.(*pop).arrived > p.arrived { //nolint:forcetypeassert // the list holds nothing else
			return l.InsertBefore(p, el)
		}
	}
	return l.PushBack(p)
}
