package engine

import (
	"context"
	"errors"

	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

// load reads the view, or brings it up to date, and the directories that pending pops need, beside the lane. It holds the busy state and ends it.
func (g *gshard) load(ctx context.Context) {
	e := g.grp.e
	end := e.clk.Now().Add(e.cfg.Patience)
	for n := 0; ; n++ {
		err := g.loadOnce(ctx)
		switch {
		case err == nil:
			g.release()
			return
		case errors.Is(err, errReadFirst) && n == 0:
			continue // the view did not fit what was read, and was dropped: once more from the start
		case errors.Is(err, store.ErrGone):
			g.gone(nil)
			return
		case !retryable(err) || e.clk.Now().After(end):
			e.trouble("load", err)
			g.fail(e.dbError(err))
			return
		}
		e.trouble("load", err)
		if e.pauseBetween(ctx, n) != nil {
			g.fail(&UnavailableError{Err: err})
			return
		}
	}
}

func (g *gshard) loadOnce(ctx context.Context) error {
	if !g.grp.e.slots.enter(ctx) {
		return ErrDraining
	}
	defer g.grp.e.slots.leave()
	if err := g.grp.e.sameDatabase(ctx); err != nil {
		return err
	}
	if err := g.refresh(ctx); err != nil {
		return err
	}
	err := g.admitReading(ctx)
	g.remember()
	return err
}

// refresh brings the view up to date, if it is there not or is said to be stale.
func (g *gshard) refresh(ctx context.Context) error {
	e := g.grp.e
	g.forgetReplaced()
	g.mu.Lock()
	stale := g.stale
	g.stale = false // what is seen from here on is newer than what is read now
	g.mu.Unlock()
	if g.view != nil && !stale {
		return nil
	}
	known := window.Known{}
	if g.view != nil {
		known = g.view.Known()
	}
	sctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
	defer cancel()
	sent := e.clk.Now()
	state, err := e.db.Refresh(sctx, g.id, known)
	if err == nil {
		e.dbtime.observe(state.Now, sent)
		err = g.adoptState(state)
	}
	if err != nil {
		g.mu.Lock()
		g.stale = true
		g.mu.Unlock()
	}
	return err
}
