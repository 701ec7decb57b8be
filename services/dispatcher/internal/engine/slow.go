package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

// minWait keeps what was tried too early from spinning.
const minWait = time.Millisecond

// errReadFirst says that a plan under the lock needs something that is not in memory. Nobody reads while holding a lock: the transaction is given up,
// the reading done, and the lock taken again.
var errReadFirst = errors.New("something must be read before the lock")

// missing is what a plan under the lock did not find in memory: messages that become dead letters, or else directories.
type missing struct {
	letters []window.DeadLetter
}

// doubt notes that nobody knows whether a plan's change happened (R5). The view is dropped; the leases it may have granted are given back before
// anything else is done, if they exist. Settlements and releases are made again; what they were about is kept, so that they are not called stale only
// because they did happen.
func (g *gshard) doubt(p *plan) {
	for _, l := range p.change.LeaseInserts {
		g.doubtful = append(g.doubtful, l.Epoch)
	}
	for _, r := range p.requests {
		if epoch, ok := epochOf(r.want); ok && g.view != nil && r.held == nil {
			r.held = g.view.Held(epoch)
		}
	}
	g.unsure = true
	g.forget()
}

// epochOf returns the lease that a settlement or release is about.
func epochOf(want window.Request) (window.Epoch, bool) {
	switch want := want.(type) {
	case *window.Settle:
		return want.Epoch, true
	case *window.Release:
		return want.Epoch, true
	}
	return 0, false
}

// absolve corrects the outcomes of requests that were made again because nobody knew whether they had happened, and which found what they were about
// gone: a settlement of everything that is settled, a reject of what is settled, and a release of what is not held, came to what was asked for. The view
// is current.
func (p *plan) absolve() {
	for i, r := range p.requests {
		out := &p.outcomes[i]
		switch want := r.want.(type) {
		case *window.Release:
			if len(r.held) > 0 && out.Result == window.Stale && len(want.Offsets) == 0 {
				*out = window.Outcome{Result: window.Done, Count: len(r.held)}
			}
		case *window.Settle:
			if len(r.held) > 0 {
				p.absolveSettle(r, want, out)
			}
		}
	}
}

func (p *plan) absolveSettle(r *request, want *window.Settle, out *window.Outcome) {
	all, rest := true, len(r.held)
	for _, at := range r.held {
		all = all && p.g.view.Settled(at)
		if slices.ContainsFunc(want.Items, func(i window.Item) bool { return !i.Through && i.Offset == at }) {
			rest--
		}
	}
	for j := range out.Items {
		item, res := &want.Items[j], &out.Items[j]
		switch {
		case item.Through && all && out.Result == window.Stale:
			*res = window.ItemResult{Result: window.Done, Count: rest}
			out.Result, out.Refusal = window.Done, false
		case !item.Through && item.Verdict != window.Ack && res.Result == window.AlreadySettled && slices.Contains(r.held, item.Offset):
			*res = window.ItemResult{Result: window.DeadLettered, Count: 1}
		}
	}
}

func (g *gshard) inDoubt() bool { return g.unsure }

// releases returns wishes to give back the leases that this process granted without hearing of it. They are told from leases of another process under
// the same epoch by the holder's suffix.
func (g *gshard) releases(state *store.State) []*request {
	var out []*request
	for _, row := range state.Leases {
		for _, epoch := range g.doubtful {
			if row.Epoch == epoch && strings.HasSuffix(row.Holder, g.grp.e.holderSuffix) {
				out = append(out, &request{
					want: &window.Release{Epoch: epoch},
					done: func(window.Outcome, window.DBTime, uint64, error) {},
				})
			}
		}
	}
	return out
}

// slow makes changes under the row's lock: lock first, read after. It holds the busy state and ends it.
func (g *gshard) slow(ctx context.Context, cause error) {
	e := g.grp.e
	end := e.clk.Now().Add(e.cfg.Patience)
	letters := map[message.Offset]*message.Message{}
	for n := 0; ; n++ {
		if cause != nil && (e.clk.Now().After(end) || e.pauseBetween(ctx, n) != nil) {
			g.fail(&UnavailableError{Err: errors.Join(errPatience, cause)})
			return
		}
		requests, seq := g.gather(n == 0)
		if len(requests) == 0 && !g.inDoubt() {
			g.release()
			return
		}
		lack := &missing{}
		p, again, err := g.locked(ctx, requests, seq, letters, lack)
		switch {
		case err == nil && again:
			cause = nil
			g.putBack(requests)
			if e.clk.Sleep(ctx, max(e.dbtime.until(p.change.NotBefore), minWait)) != nil {
				g.fail(ErrDraining)
				return
			}
		case err == nil:
			return
		case errors.Is(err, errReadFirst):
			g.putBack(requests)
			if cause = nil; g.view == nil { // it did not fit what was read, and was dropped: once more from the start
				continue
			}
			if cause = g.readMissing(ctx, lack, letters); cause != nil && !retryable(cause) {
				g.fail(e.dbError(cause))
				return
			}
		case errors.Is(err, store.ErrGone):
			g.gone(requests)
			return
		case pg.IsOutcomeUnknown(err) || retryable(err):
			e.trouble("work under lock", err)
			e.metrics.workRetries.Inc()
			if pg.IsOutcomeUnknown(err) && p != nil {
				g.doubt(p)
			}
			g.putBack(requests)
			cause = err
		default:
			e.trouble("work under lock", err)
			g.putBack(requests)
			g.fail(e.dbError(err))
			return
		}
	}
}

// gather begins a round under the lock. It takes parked pops along where the fast path, which does so otherwise, is not to be used.
func (g *gshard) gather(first bool) (requests []*request, seq uint64) {
	requests, feed, _, seq := g.begin()
	requests = wanted(requests, seq)
	switch {
	case !feed:
	case first && len(requests) == 0 && !g.inDoubt() && g.contended():
		requests = g.grp.take(g, func(uint64) bool { return true })
	default: // they come with the next plan
		g.mu.Lock()
		g.feed = true
		g.mu.Unlock()
	}
	return requests, seq
}

// locked makes one change under the lock. On success it has answered and ended the busy state, unless again: then the change's time has not come.
func (g *gshard) locked(
	ctx context.Context, requests []*request, seq uint64, letters map[message.Offset]*message.Message, lack *missing,
) (p *plan, again bool, err error) {
	e := g.grp.e
	if !e.slots.enter(ctx) {
		return nil, false, ErrDraining
	}
	if err := e.sameDatabase(ctx); err != nil {
		e.slots.leave()
		return nil, false, err
	}
	g.forgetReplaced()
	known, before := window.Known{}, window.Version(0)
	if g.view != nil {
		known, before = g.view.Known(), g.view.Version()
	}
	foreign := false
	sent := e.clk.Now()
	decide := func(state store.State) (window.Change, error) {
		e.dbtime.observe(state.Now, sent)
		foreign = before != 0 && state.Row.Version != before
		p, err = g.decide(state, requests, seq, letters, lack)
		if err != nil {
			return window.Change{}, err
		}
		return p.change, nil
	}
	sctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
	change, result, err := e.db.WorkLocked(sctx, g.id, known, decide)
	cancel()
	e.slots.leave()
	if err != nil {
		return p, false, err
	}
	g.mu.Lock()
	g.stale = false
	g.mu.Unlock()
	e.metrics.workSlow.Inc()
	g.met(foreign)
	switch {
	case change.Empty() && !change.Drop:
		g.unsure, g.doubtful = false, nil
		g.remember()
		g.release()
		for i, r := range p.requests {
			r.done(p.outcomes[i], 0, p.seq, nil)
		}
	case result.Applied:
		g.unsure, g.doubtful = false, nil
		p.change = change
		p.applied(result.Stamp)
	default:
		e.metrics.workNotYet.Inc()
		return p, true, nil
	}
	return p, false, nil
}

// decide plans under the lock.
func (g *gshard) decide(
	state store.State, requests []*request, seq uint64, letters map[message.Offset]*message.Message, lack *missing,
) (*plan, error) {
	if err := g.adoptState(state); err != nil {
		return nil, err
	}
	all := append(g.releases(&state), requests...)
	if !g.admit(wantsOf(all)) {
		return nil, errReadFirst
	}
	p := g.plan(all, seq)
	p.absolve()
	if err := p.canKeep(); err != nil {
		return nil, err
	}
	if lack.letters = g.grp.e.useLetters(p.change.DeadLetters, letters); len(lack.letters) > 0 {
		return p, errReadFirst
	}
	return p, nil
}

// adoptState makes the view what the database holds.
func (g *gshard) adoptState(state store.State) error {
	policy := g.grp.rows.Load().policy()
	if g.view != nil {
		if err := g.view.Refresh(state.Snapshot); err == nil {
			g.view.SetPolicy(policy)
			g.version.Store(int64(g.view.Version()))
			return nil
		}
		g.forget() // it cannot be brought up to date: read from the start
		return errReadFirst
	}
	view, err := window.Load(state.Snapshot, policy)
	if err != nil {
		return err
	}
	g.grp.e.metrics.loads.Inc()
	g.view = view
	g.version.Store(int64(view.Version()))
	return nil
}

// readMissing reads what a plan under the lock lacked.
func (g *gshard) readMissing(ctx context.Context, lack *missing, letters map[message.Offset]*message.Message) error {
	e := g.grp.e
	if !e.slots.enter(ctx) {
		return ErrDraining
	}
	defer e.slots.leave()
	if len(lack.letters) > 0 {
		return e.readLetters(ctx, g.shard.id, lack.letters, letters)
	}
	return g.admitReading(ctx)
}

// gone answers after the row was found missing: the group or its queue was deleted, and every lease with it.
func (g *gshard) gone(requests []*request) {
	g.putBack(requests)
	g.grp.e.drop(g.grp)
	g.grp.endAll(errGone)
	g.fail(errGone)
}

// replaced says that the view is of a database that does not answer any more.
func (g *gshard) replaced() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.reset
}

// forgetReplaced drops the view if it is of a database that does not answer any more.
func (g *gshard) forgetReplaced() {
	g.mu.Lock()
	replaced := g.reset
	g.reset = false
	g.mu.Unlock()
	if replaced {
		g.forget()
	}
}

// forget drops the view. What is unknown is read again when it is needed.
func (g *gshard) forget() {
	g.view = nil
	g.version.Store(0)
	g.grp.e.views.account(g, 0)
}
