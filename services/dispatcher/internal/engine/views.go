package engine

import (
	"container/list"
	"context"
	"sync"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/window"
)

const (
	// sweepEvery is how often groups that nobody uses any more are let go.
	sweepEvery = 30 * time.Second
	// gshardBytes is what a group-shard costs beside its view.
	gshardBytes = 1 << 10
)

// views bounds the memory of all views together: when there is too much, those used longest ago are dropped whole. A view is only a cache.
type views struct {
	e    *Engine
	wake chan struct{}

	mu    sync.Mutex // guards the rest
	bytes int64
	lru   list.List // of *gshard with a view; front: used last
	place map[*gshard]*list.Element
}

func newViews(e *Engine) *views {
	return &views{e: e, wake: make(chan struct{}, 1), place: map[*gshard]*list.Element{}}
}

func (v *views) total() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.bytes
}

// account notes what the view of g takes now; 0 means that there is none any more. The caller holds g's busy state.
func (v *views) account(g *gshard, bytes int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bytes += bytes - g.bytes
	g.bytes = bytes
	el := v.place[g]
	switch {
	case bytes == 0 && el != nil:
		v.lru.Remove(el)
		delete(v.place, g)
	case bytes > 0 && el != nil:
		v.lru.MoveToFront(el)
	case bytes > 0:
		v.place[g] = v.lru.PushFront(g)
	}
	if v.bytes > v.e.cfg.ViewBytes {
		select {
		case v.wake <- struct{}{}:
		default:
		}
	}
}

// run makes room when it is needed until ctx ends.
func (v *views) run(ctx context.Context) error {
	ticker := v.e.clk.NewTicker(sweepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-v.wake:
			v.shrink()
		case <-ticker.C():
			v.e.sweep()
		case <-ctx.Done():
			return nil
		}
	}
}

// shrink drops views, those used longest ago first, until they fit. What is busy is left alone.
func (v *views) shrink() {
	v.mu.Lock()
	var victims []*gshard
	excess := v.bytes - v.e.cfg.ViewBytes
	for el := v.lru.Back(); el != nil && excess > 0; el = el.Prev() {
		g := el.Value.(*gshard) //nolint:forcetypeassert // the list holds nothing else
		victims = append(victims, g)
		excess -= g.bytes
	}
	v.mu.Unlock()
	for _, g := range victims {
		g.evict()
	}
}

// evict drops the view, if nobody works on it. Its version stays known, so that a poll need not bring it back.
func (g *gshard) evict() bool {
	g.mu.Lock()
	if g.state != idle {
		g.mu.Unlock()
		return false
	}
	g.state = busy
	g.mu.Unlock()
	if g.view != nil {
		g.view = nil
		g.grp.e.views.account(g, 0)
		g.grp.e.metrics.evictions.Inc()
	}
	g.release()
	return true
}

// remember accounts for the view after it was used, and sets the alarm for what comes due. The caller holds the busy state.
func (g *gshard) remember() {
	if g.view == nil {
		return
	}
	g.grp.e.views.account(g, gshardBytes+int64(g.view.Bytes()))
	g.setAlarm(g.view.NextWake())
}

// setAlarm has the group-shard woken at an instant if pops wait then; not ok means never.
func (g *gshard) setAlarm(at window.DBTime, ok bool) {
	if !ok {
		at = 0
	}
	g.wakeAt.Store(int64(at))
	if g.grp.hasParked() {
		g.grp.e.alarm.set(int64(at))
	}
}

// dbTimeOf converts an instant read from the database.
func dbTimeOf(t time.Time) window.DBTime { return window.DBTimeOf(t) }
