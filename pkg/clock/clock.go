// Package clock makes time a dependency: code takes a Clock instead of calling package time, and tests move a Fake one by hand.
//
// It is the only package that may call time.Now and its friends. What it measures is the process's own time: good for timeouts, pacing and
// for trusting a lease less, never for deciding who holds what (that is the database's time).
package clock

import (
	"context"
	"time"
)

// Clock tells and waits for time. Implementations MUST be safe for concurrent use.
type Clock interface {
	// Now returns the current instant; on the real clock it carries a monotonic reading.
	Now() time.Time
	// Since returns how long ago t was.
	Since(t time.Time) time.Duration
	// NewTimer returns a Timer that fires once, d from now. Like in package time, no stale value is received after Stop or Reset.
	NewTimer(d time.Duration) Timer
	// NewTicker returns a Ticker that fires every d and drops ticks for slow receivers. It panics if d is not positive.
	NewTicker(d time.Duration) Ticker
	// After returns a channel that receives the time once, d from now.
	After(d time.Duration) <-chan time.Time
	// Sleep returns nil after d, or context.Cause(ctx) as soon as ctx ends. A d of zero or less only looks at ctx.
	Sleep(ctx context.Context, d time.Duration) error
}

// Timer is a time.Timer behind an interface.
type Timer interface {
	// C receives the time when the timer fires.
	C() <-chan time.Time
	// Stop prevents the timer from firing; it reports whether the timer was still running.
	Stop() bool
	// Reset makes the timer fire d from now; it reports whether the timer was still running.
	Reset(d time.Duration) bool
}

// Ticker is a time.Ticker behind an interface.
type Ticker interface {
	// C receives the time at each tick.
	C() <-chan time.Time
	// Stop turns the ticker off; C is not closed.
	Stop()
	// Reset changes the period to d and starts a new one now. It panics if d is not positive.
	Reset(d time.Duration)
}

// Real is the machine's clock. The zero value is ready for use.
type Real struct{}

var _ Clock = Real{}

// Now is time.Now.
func (Real) Now() time.Time { return time.Now() }

// Since is time.Since.
func (Real) Since(t time.Time) time.Duration { return time.Since(t) }

// NewTimer is time.NewTimer.
func (Real) NewTimer(d time.Duration) Timer { return realTimer{time.NewTimer(d)} }

// NewTicker is time.NewTicker.
func (Real) NewTicker(d time.Duration) Ticker { return realTicker{time.NewTicker(d)} }

// After is time.After.
func (Real) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Sleep waits for d or for the end of ctx.
func (r Real) Sleep(ctx context.Context, d time.Duration) error { return sleep(ctx, r, d) }

func sleep(ctx context.Context, clk Clock, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if d <= 0 {
		return nil
	}
	t := clk.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Rest waits for d, for a token of wake or for the end of ctx, whichever comes first, and says whether it was the token. It is the pause of a loop that can
// be asked for a round at once.
func Rest(ctx context.Context, clk Clock, d time.Duration, wake <-chan struct{}) (woken bool) {
	t := clk.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C():
	case <-wake:
		return true
	case <-ctx.Done():
	}
	return false
}

type realTimer struct{ t *time.Timer }

func (t realTimer) C() <-chan time.Time        { return t.t.C }
func (t realTimer) Stop() bool                 { return t.t.Stop() }
func (t realTimer) Reset(d time.Duration) bool { return t.t.Reset(d) }

type realTicker struct{ t *time.Ticker }

func (t realTicker) C() <-chan time.Time   { return t.t.C }
func (t realTicker) Stop()                 { t.t.Stop() }
func (t realTicker) Reset(d time.Duration) { t.t.Reset(d) }
