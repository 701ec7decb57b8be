package engine

import (
	"context"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

// alone brings in one plan by itself, reading first what its dead letters need.
func (p *plan) alone(ctx context.Context) {
	g, e := p.g, p.g.grp.e
	if !e.slots.enter(ctx) {
		g.putBack(p.requests)
		g.fail(ErrDraining)
		return
	}
	err := p.canKeep()
	if err == nil {
		err = e.fillDeadLetters(ctx, g, p.change.DeadLetters)
	}
	if g.replaced() {
		e.slots.leave()
		g.putBack(p.requests)
		g.slow(ctx, nil)
		return
	}
	var results []store.WorkResult
	if err == nil {
		g.version.Store(int64(p.change.To))
		sctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
		results, err = e.db.Work(sctx, []window.Change{p.change})
		cancel()
	}
	e.slots.leave()
	switch {
	case err == nil:
		p.settle(ctx, results[0])
	case pg.IsOutcomeUnknown(err):
		e.trouble("work", err)
		g.doubt(p)
		g.putBack(p.requests)
		g.slow(ctx, err)
	case retryable(err):
		e.trouble("work", err)
		g.putBack(p.requests)
		g.slow(ctx, err)
	default:
		e.trouble("work", err)
		p.refuse(err)
	}
}

// refuse deals with a change that the database will never take: its requests are planned one by one, so that the one at fault fails alone.
func (p *plan) refuse(err error) {
	g := p.g
	g.version.Store(int64(g.view.Version()))
	if len(p.requests) > 1 {
		g.mu.Lock()
		g.singles = len(p.requests)
		g.mu.Unlock()
		g.putBack(p.requests)
		g.release()
		return
	}
	g.release()
	for _, r := range p.requests {
		r.done(window.Outcome{}, 0, p.seq, g.grp.e.dbError(err))
	}
}
