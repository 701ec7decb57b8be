package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

// maxPlan bounds the requests of one plan, and so the size of one statement.
const maxPlan = 1024

// workLane makes the changes of the group-shards of half the queues, those of one moment in one transaction. It never waits for anything but that
// transaction: what needs a read, or the row's lock, goes on beside it.
type workLane struct {
	e    *Engine
	wake chan struct{}

	mu    sync.Mutex // guards ready
	ready []*gshard
}

func newWorkLane(e *Engine) *workLane { return &workLane{e: e, wake: make(chan struct{}, 1)} }

// push queues a group-shard that has something to do.
func (l *workLane) push(g *gshard) {
	l.mu.Lock()
	l.ready = append(l.ready, g)
	first := len(l.ready) == 1
	l.mu.Unlock()
	if first {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// run works until ctx ends, then refuses what is left.
func (l *workLane) run(ctx context.Context) error {
	for {
		batch := l.take()
		if len(batch) > 0 {
			l.work(l.e.base, batch) //nolint:contextcheck // what is in flight when ctx ends is finished
			continue
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

func (l *workLane) take() []*gshard {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.ready), store.MaxWork)
	batch := l.ready[:n:n]
	l.ready = l.ready[n:]
	if len(l.ready) == 0 {
		l.ready = nil
	}
	return batch
}

// plan is a change of one group-shard with the requests it answers.
type plan struct {
	g        *gshard
	requests []*request
	outcomes []window.Outcome
	change   window.Change
	seq      uint64
}

// work plans for each group-shard and brings the changes in together.
func (l *workLane) work(ctx context.Context, batch []*gshard) {
	plans := make([]*plan, 0, len(batch))
	changes := make([]window.Change, 0, len(batch))
	for _, g := range batch {
		if p := g.prepare(ctx); p != nil {
			plans = append(plans, p)
			changes = append(changes, p.change)
		}
	}
	if len(plans) == 0 {
		return
	}
	sctx, cancel := context.WithTimeout(ctx, l.e.cfg.StatementTimeout)
	sent := l.e.clk.Now()
	results, err := l.e.db.Work(sctx, changes)
	cancel()
	if err != nil {
		l.failed(ctx, plans, err)
		return
	}
	for i, p := range plans {
		l.e.dbtime.observe(results[i].Now, sent)
		p.settle(ctx, results[i])
	}
}

// failed deals with a transaction that did nothing, or whose outcome is unknown.
func (l *workLane) failed(ctx context.Context, plans []*plan, err error) {
	l.e.metrics.workRetries.Inc()
	unknown := pg.IsOutcomeUnknown(err)
	l.e.trouble("work", err)
	if !unknown && !retryable(err) { // one of them is at fault
		for _, p := range plans {
			if len(plans) > 1 {
				l.e.background(func() { p.alone(ctx) })
			} else {
				p.refuse(err)
			}
		}
		return
	}
	for _, p := range plans {
		if unknown {
			p.g.doubt(p)
		}
		p.g.putBack(p.requests)
		l.e.background(func() { p.g.slow(ctx, err) })
	}
}

// begin makes the state of a fresh plan out of what is pending. It returns false if there is nothing to do.
func (g *gshard) begin() (requests []*request, feed, stale bool, seq uint64) {
	g.forgetReplaced()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.state = busy
	n := min(len(g.pending), maxPlan)
	if g.singles > 0 && n > 0 {
		n = 1
		g.singles--
	}
	requests = g.pending[:n:n]
	g.pending = g.pending[n:]
	if len(g.pending) == 0 {
		g.pending = nil
	}
	feed, g.feed = g.feed, false
	return requests, feed, g.stale, g.seq.Load()
}

// prepare plans from memory, if that is possible now. It returns nil when the group-shard was handed on or has nothing to write; whoever has it then ends
// the busy state.
func (g *gshard) prepare(ctx context.Context) *plan {
	verified := g.grp.e.identity.verified() // before the view is: what changes behind it has the view dropped
	requests, feed, stale, seq := g.begin()
	requests = wanted(requests, seq)
	feed = feed && g.grp.hasParked()
	if len(requests) == 0 && !feed {
		g.release()
		return nil
	}
	hold := func(run func()) *plan {
		g.mu.Lock()
		g.feed = g.feed || feed
		g.mu.Unlock()
		g.putBack(requests)
		g.grp.e.background(run)
		return nil
	}
	if g.contended() || g.inDoubt() {
		return hold(func() { g.slow(ctx, nil) })
	}
	if g.view == nil || stale || !verified {
		return hold(func() { g.load(ctx) })
	}
	g.view.SetPolicy(g.grp.rows.Load().policy())
	if feed {
		if !g.admit(wantsOf(requests).feeding(g.grp)) { // the parked ones are chosen by what is admitted
			return hold(func() { g.load(ctx) })
		}
		requests = append(requests, g.grp.take(g, g.mayServe)...)
		feed = false
	}
	if !g.admit(wantsOf(requests)) {
		return hold(func() { g.load(ctx) })
	}
	if len(requests) == 0 { // what is due is for nobody who waits; what comes due later may be
		g.setAlarm(g.view.NextWakeAfter(g.grp.e.dbtime.now()))
		g.release()
		return nil
	}
	p := g.plan(requests, seq)
	switch {
	case p.change.Empty() && !p.change.Drop:
		p.unwritten(ctx)
		return nil
	case len(p.change.DeadLetters) > 0:
		if !g.grp.e.background(func() { p.alone(ctx) }) {
			g.putBack(requests)
		}
		return nil
	}
	g.version.Store(int64(p.change.To))
	return p
}

// wanted drops requests that nobody waits for any more.
func wanted(requests []*request, seq uint64) []*request {
	kept := requests[:0:0]
	for _, r := range requests {
		if r.dropped != nil && r.dropped() {
			r.done(window.Outcome{Result: window.Nothing}, 0, seq, nil)
			continue
		}
		kept = append(kept, r)
	}
	return kept
}

// plan lays the requests before the view.
func (g *gshard) plan(requests []*request, seq uint64) *plan {
	e := g.grp.e
	wishes := make([]window.Request, len(requests))
	for i, r := range requests {
		wishes[i] = r.want
	}
	p := &plan{g: g, requests: requests, seq: seq}
	p.change, p.outcomes = g.view.Plan(e.dbtime.now(), e.draw, wishes)
	q := g.grp.rows.Load().queue
	p.change.Private = q.Encrypted()
	if p.change.Private && q.Usable() == nil {
		p.change.Key = q.Key()
	}
	return p
}

// canKeep refuses a change with dead letters of an encrypted queue whose key is missing: they wait for it.
func (p *plan) canKeep() error {
	if len(p.change.DeadLetters) > 0 && p.change.Private && p.change.Key == nil {
		return store.ErrKeyMissing
	}
	return nil
}

// unwritten answers a plan that has nothing to write. Refusals of anything but pops need proof: they are planned again under the row's lock.
func (p *plan) unwritten(ctx context.Context) {
	var unproven []*request
	var answered []int
	for i, r := range p.requests {
		if _, pop := r.want.(*window.Pop); p.outcomes[i].Refusal && !pop {
			unproven = append(unproven, r)
		} else {
			answered = append(answered, i)
		}
	}
	if len(unproven) > 0 {
		p.g.putBack(unproven)
	}
	p.g.remember()
	g := p.g
	for _, i := range answered {
		p.requests[i].done(p.outcomes[i], 0, p.seq, nil)
	}
	if len(unproven) > 0 {
		g.grp.e.background(func() { g.slow(ctx, nil) })
		return
	}
	g.release()
}

// settle takes the result of a plan's change and ends the busy state, or hands it on.
func (p *plan) settle(ctx context.Context, r store.WorkResult) {
	g, e := p.g, p.g.grp.e
	switch {
	case r.Applied:
		g.met(false)
		p.applied(r.Stamp)
	case r.Early(&p.change):
		e.metrics.workNotYet.Inc()
		g.version.Store(int64(g.view.Version()))
		g.putBack(p.requests)
		wait := e.dbtime.until(p.change.NotBefore)
		e.background(func() {
			_ = e.clk.Sleep(ctx, max(wait, minWait)) // the end of ctx is noticed by the next step
			g.release()
		})
	default:
		e.metrics.workLost.Inc()
		g.met(true)
		g.putBack(p.requests)
		e.background(func() { g.slow(ctx, nil) })
	}
}

// applied commits the change to the view and answers.
func (p *plan) applied(stamp window.Stamp) {
	g, e := p.g, p.g.grp.e
	e.metrics.workCommits.Inc()
	g.view.Commit(p.change, stamp)
	g.version.Store(int64(g.view.Version()))
	e.count(p)
	freed := false
	for i, r := range p.requests {
		if _, pop := r.want.(*window.Pop); !pop && p.outcomes[i].Result != window.Stale {
			freed = true
		}
	}
	g.remember()
	if freed || g.grp.hasParked() {
		g.wake()
	}
	g.release()
	for i, r := range p.requests {
		r.done(p.outcomes[i], stamp.At, p.seq, nil)
	}
}

// count tells the metrics what a change did.
func (e *Engine) count(p *plan) {
	for i, r := range p.requests {
		out := &p.outcomes[i]
		switch want := r.want.(type) {
		case *window.Settle:
			for j, item := range out.Items {
				switch item.Result {
				case window.Done:
					e.metrics.acked.Add(float64(item.Count))
				case window.Retrying:
					e.metrics.nacked.Add(float64(item.Count))
				case window.DeadLettered:
					if want.Items[j].Verdict == window.Nack {
						e.metrics.nacked.Add(float64(item.Count))
					}
				case window.AlreadySettled, window.Stale, window.Nothing, window.Refused, window.NotHeld, window.Returned:
				}
			}
		case *window.Trim:
			e.metrics.dropped.Add(float64(out.Count))
		case *window.Reclaim:
			e.metrics.reclaimed.Add(float64(out.Count))
		}
	}
	e.metrics.deadLetters.Add(float64(len(p.change.DeadLetters)))
}

// fail refuses everything that is pending and forgets the view.
func (g *gshard) fail(err error) {
	g.mu.Lock()
	requests := g.pending
	g.pending = nil
	g.mu.Unlock()
	g.forget()
	for _, r := range requests {
		r.done(window.Outcome{}, 0, g.seq.Load(), err)
	}
	g.release()
}

var errPatience = errors.New("patience is over")

const (
	retryPause    = 10 * time.Millisecond // about the first pause before something is tried again; doubles to maxRetryPause
	maxRetryPause = 500 * time.Millisecond
)

// pauseBetween is the wait before the n-th repetition of something that failed.
func (e *Engine) pauseBetween(ctx context.Context, n int) error {
	if e.leaving.Load() {
		return ErrDraining
	}
	pause := retryPause << min(n, 6)
	return e.clk.Sleep(ctx, clock.FullJitter(e.rand, min(pause, maxRetryPause)))
}
