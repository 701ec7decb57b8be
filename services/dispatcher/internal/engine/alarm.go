package engine

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/window"
)

// alarm wakes group-shards when time alone makes something available: a retry that comes due, a lease that may be taken back. It looks only at groups on
// which pops wait. It goes by the guess of the database's clock; the database has the last word.
type alarm struct {
	e    *Engine
	wake chan struct{}
	next atomic.Int64 // window.DBTime for which the timer is set
}

func newAlarm(e *Engine) *alarm {
	a := &alarm{e: e, wake: make(chan struct{}, 1)}
	a.next.Store(math.MaxInt64)
	return a
}

// set says that something of a group-shard comes due at that time.
func (a *alarm) set(at int64) {
	if at != 0 && at < a.next.Load() {
		a.signal()
	}
}

func (a *alarm) signal() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// run rings until ctx ends.
func (a *alarm) run(ctx context.Context) error {
	timer := a.e.clk.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(a.ring())
		select {
		case <-a.wake:
		case <-timer.C():
		case <-ctx.Done():
			return nil
		}
	}
}

// ring wakes what is due and returns how long until the next.
func (a *alarm) ring() time.Duration {
	a.next.Store(math.MinInt64) // whoever sets an alarm from here on finds a later one, or signals
	now := a.e.dbtime.now()
	next := int64(math.MaxInt64)
	var due []*gshard
	a.e.poller.each(func(w watched) {
		g, ok := w.(*group)
		if !ok {
			return
		}
		for _, s := range g.shards {
			at := s.wakeAt.Load()
			switch {
			case at == 0:
			case at <= int64(now):
				s.wakeAt.CompareAndSwap(at, 0) // set again by the next look at the view
				due = append(due, s)
			default:
				next = min(next, at)
			}
		}
	})
	a.next.Store(next)
	for _, s := range due {
		s.wake()
	}
	if next == math.MaxInt64 {
		return time.Hour
	}
	return max(a.e.dbtime.until(window.DBTime(next)), minWait)
}
