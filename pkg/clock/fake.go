package clock

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Fake is a Clock that stands still until Advance or Set moves it.
//
// Timers fire inside Advance, in the order of their deadlines, with Now equal to the deadline while they do. BlockUntil lets a test wait until
// the code under test is waiting, so that the test never sleeps.
type Fake struct {
	mu      sync.Mutex // guards all below
	changed *sync.Cond // broadcast when the number of waiters changes
	now     time.Time
	waiters []*fakeTimer // the running timers and tickers, in no order
}

var _ Clock = (*Fake)(nil)

// NewFake returns a Fake that stands at t.
func NewFake(t time.Time) *Fake {
	f := &Fake{now: t.Round(0)}
	f.changed = sync.NewCond(&f.mu)
	return f
}

// Now returns the instant the clock stands at.
func (f *Fake) Now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now
}

// Since returns Now minus t.
func (f *Fake) Since(t time.Time) time.Duration { return f.Now().Sub(t) }

// Sleep returns nil once the clock has been advanced by d, or the cause of ctx's end.
func (f *Fake) Sleep(ctx context.Context, d time.Duration) error { return sleep(ctx, f, d) }

// After returns the channel of a new timer.
func (f *Fake) After(d time.Duration) <-chan time.Time { return f.NewTimer(d).C() }

// NewTimer returns a timer that fires when the clock has been advanced by d; at once if d is not positive.
func (f *Fake) NewTimer(d time.Duration) Timer {
	t := &fakeTimer{clock: f, c: make(chan time.Time, 1)}
	t.Reset(d)
	return t
}

// NewTicker returns a ticker that fires at each multiple of d from now.
func (f *Fake) NewTicker(d time.Duration) Ticker {
	t := fakeTicker{&fakeTimer{clock: f, c: make(chan time.Time, 1)}}
	t.Reset(d)
	return t
}

// Advance moves the clock by d (which must not be negative) and fires what is due on the way.
func (f *Fake) Advance(d time.Duration) {
	if d < 0 {
		panic("clock: a fake clock cannot go back")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.moveTo(f.now.Add(d))
}

// Set moves the clock to t, or leaves it alone if t is in its past, and fires what is due on the way.
func (f *Fake) Set(t time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t.After(f.now) {
		f.moveTo(t.Round(0))
	}
}

// BlockUntil returns when at least n timers, tickers and sleepers wait on the clock.
func (f *Fake) BlockUntil(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.waiters) < n {
		f.changed.Wait()
	}
}

// Waiters returns how many timers, tickers and sleepers wait on the clock.
func (f *Fake) Waiters() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.waiters)
}

// moveTo needs f.mu.
func (f *Fake) moveTo(end time.Time) {
	for {
		next := f.earliest()
		if next == nil || next.at.After(end) {
			break
		}
		if next.at.After(f.now) {
			f.now = next.at
		}
		next.fire()
	}
	f.now = end
}

// earliest needs f.mu.
func (f *Fake) earliest() *fakeTimer {
	if len(f.waiters) == 0 {
		return nil
	}
	return slices.MinFunc(f.waiters, func(a, b *fakeTimer) int { return a.at.Compare(b.at) })
}

type fakeTimer struct {
	clock  *Fake
	c      chan time.Time
	at     time.Time     // guarded by clock.mu, like the rest
	period time.Duration // > 0: a ticker
}

func (t *fakeTimer) C() <-chan time.Time { return t.c }

func (t *fakeTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	return t.stop()
}

func (t *fakeTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	running := t.stop()
	t.at = t.clock.now.Add(d)
	t.clock.waiters = append(t.clock.waiters, t)
	if d <= 0 {
		t.fire()
	}
	t.clock.changed.Broadcast()
	return running
}

// stop removes t from the waiters and empties its channel. It needs clock.mu.
func (t *fakeTimer) stop() bool {
	i := slices.Index(t.clock.waiters, t)
	if i >= 0 {
		t.clock.waiters = slices.Delete(t.clock.waiters, i, i+1)
		t.clock.changed.Broadcast()
	}
	select {
	case <-t.c:
	default:
	}
	return i >= 0
}

// fire sends the time and, for a ticker, plans the next tick. It needs clock.mu.
func (t *fakeTimer) fire() {
	select {
	case t.c <- t.clock.now:
	default: // a slow receiver loses ticks, as with package time
	}
	if t.period > 0 {
		t.at = t.at.Add(t.period)
		return
	}
	i := slices.Index(t.clock.waiters, t)
	t.clock.waiters = slices.Delete(t.clock.waiters, i, i+1)
	t.clock.changed.Broadcast()
}

type fakeTicker struct{ t *fakeTimer }

func (t fakeTicker) C() <-chan time.Time { return t.t.c }
func (t fakeTicker) Stop()               { t.t.Stop() }

func (t fakeTicker) Reset(d time.Duration) {
	if d <= 0 {
		panic("clock: a ticker needs a positive period")
	}
	t.t.clock.mu.Lock()
	t.t.period = d
	t.t.clock.mu.Unlock()
	t.t.Reset(d)
}
