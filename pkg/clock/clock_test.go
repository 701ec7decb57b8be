package clock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"postrider.dev/pkg/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func t0() time.Time { return time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC) }

// clocks runs the same promises against both implementations. In a synctest bubble real time moves by itself; fake time is moved by advance.
func clocks(t *testing.T, promise func(t *testing.T, c clock.Clock, advance func(time.Duration))) {
	t.Run("real", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			promise(t, clock.Real{}, func(d time.Duration) {
				<-clock.Real{}.After(d)
				synctest.Wait()
			})
		})
	})
	t.Run("fake", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := clock.NewFake(t0())
			promise(t, f, func(d time.Duration) {
				synctest.Wait()
				f.Advance(d)
				synctest.Wait()
			})
		})
	})
}

func fired(c <-chan time.Time) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestTimerFiresOnceAtItsTime(t *testing.T) {
	t.Parallel()
	clocks(t, func(t *testing.T, c clock.Clock, advance func(time.Duration)) {
		start := c.Now()
		timer := c.NewTimer(time.Second)
		advance(999 * time.Millisecond)
		require.False(t, fired(timer.C()))
		advance(2 * time.Millisecond)
		require.True(t, fired(timer.C()))
		require.False(t, timer.Stop(), "a fired timer does not run")
		advance(time.Hour)
		require.False(t, fired(timer.C()))
		require.Equal(t, time.Hour+1001*time.Millisecond, c.Since(start))
	})
}

func TestStoppedAndResetTimersLeaveNoStaleTick(t *testing.T) {
	t.Parallel()
	clocks(t, func(t *testing.T, c clock.Clock, advance func(time.Duration)) {
		timer := c.NewTimer(time.Second)
		require.True(t, timer.Stop())
		advance(2 * time.Second)
		require.False(t, fired(timer.C()))

		require.False(t, timer.Reset(time.Second))
		advance(2 * time.Second)
		timer.Reset(time.Second) // the first firing was not received; it must be gone
		require.False(t, fired(timer.C()))
		advance(2 * time.Second)
		require.True(t, fired(timer.C()))
	})
}

func TestTickerDropsTicksForSlowReceivers(t *testing.T) {
	t.Parallel()
	clocks(t, func(t *testing.T, c clock.Clock, advance func(time.Duration)) {
		ticker := c.NewTicker(time.Second)
		defer ticker.Stop()
		advance(5*time.Second + time.Millisecond)
		require.True(t, fired(ticker.C()))
		require.False(t, fired(ticker.C()))
		advance(time.Second)
		require.True(t, fired(ticker.C()))
		ticker.Reset(time.Minute)
		advance(59 * time.Second)
		require.False(t, fired(ticker.C()))
		advance(2 * time.Second)
		require.True(t, fired(ticker.C()))
		ticker.Stop()
		advance(time.Hour)
		require.False(t, fired(ticker.C()))
		require.Panics(t, func() { ticker.Reset(0) })
		require.Panics(t, func() { c.NewTicker(-1) })
	})
}

func TestSleepEndsByTimeOrByContext(t *testing.T) {
	t.Parallel()
	clocks(t, func(t *testing.T, c clock.Clock, advance func(time.Duration)) {
		done := make(chan error, 1)
		go func() { done <- c.Sleep(t.Context(), time.Second) }()
		advance(1001 * time.Millisecond)
		require.NoError(t, <-done)

		why := errors.New("no longer needed")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { done <- c.Sleep(ctx, time.Hour) }()
		cancel(why)
		require.ErrorIs(t, <-done, why)
		require.ErrorIs(t, c.Sleep(ctx, 0), why, "an ended context is noticed even without sleeping")
		require.NoError(t, c.Sleep(t.Context(), -1))
	})
}

func TestRestEndsByTimeByAWakeOrByContext(t *testing.T) {
	t.Parallel()
	clocks(t, func(t *testing.T, c clock.Clock, advance func(time.Duration)) {
		woken, wake := make(chan bool, 1), make(chan struct{}, 1)
		go func() { woken <- clock.Rest(t.Context(), c, time.Second, wake) }()
		advance(1001 * time.Millisecond)
		require.False(t, <-woken, "time has passed")

		wake <- struct{}{}
		require.True(t, clock.Rest(t.Context(), c, time.Hour, wake))
		require.Empty(t, wake, "the token is taken")

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.False(t, clock.Rest(ctx, c, time.Hour, wake), "the end of the context is no wake")
	})
}

func TestFakeFiresInOrderOfDeadlines(t *testing.T) {
	t.Parallel()
	f := clock.NewFake(t0())
	late, early := f.NewTimer(3*time.Second), f.NewTimer(time.Second)
	f.Advance(10 * time.Second)
	require.Equal(t, t0().Add(time.Second), <-early.C(), "Now is the deadline while a timer fires")
	require.Equal(t, t0().Add(3*time.Second), <-late.C())
	require.Equal(t, t0().Add(10*time.Second), f.Now())
	require.Zero(t, f.Waiters())
	require.True(t, fired(f.After(0)), "a timer without a duration fires at once")

	f.Set(t0()) // the past: no move
	require.Equal(t, t0().Add(10*time.Second), f.Now())
	f.Set(t0().Add(time.Hour))
	require.Equal(t, t0().Add(time.Hour), f.Now())
	require.Panics(t, func() { f.Advance(-1) })
}

func TestBlockUntilWaitsForTheSleeper(t *testing.T) {
	t.Parallel()
	f := clock.NewFake(t0())
	done := make(chan error, 1)
	go func() { done <- f.Sleep(t.Context(), time.Minute) }()
	f.BlockUntil(1)
	f.Advance(time.Minute)
	require.NoError(t, <-done)
}

func TestJitterStaysInItsBounds(t *testing.T) {
	t.Parallel()
	for _, r := range []clock.Rand{clock.Random{}, rand.New(rand.NewPCG(1, 2))} {
		var low, high bool
		for range 2000 {
			d := clock.Jitter(r, time.Second, .2)
			require.GreaterOrEqual(t, d, 800*time.Millisecond)
			require.LessOrEqual(t, d, 1200*time.Millisecond)
			low, high = low || d < 850*time.Millisecond, high || d > 1150*time.Millisecond

			full := clock.FullJitter(r, time.Second)
			require.GreaterOrEqual(t, full, time.Duration(0))
			require.LessOrEqual(t, full, time.Second)
		}
		require.True(t, low && high, "the spread is used")
	}
	r := clock.Random{}
	require.Equal(t, time.Second, clock.Jitter(r, time.Second, 0))
	require.Equal(t, time.Duration(-5), clock.Jitter(r, -5, 1))
	require.LessOrEqual(t, clock.Jitter(r, time.Second, 7), 2*time.Second)
	require.Zero(t, clock.FullJitter(r, -1))
	require.GreaterOrEqual(t, clock.FullJitter(r, 1<<63-1), time.Duration(0))
	require.Equal(t, time.Duration(1<<63-1), clock.Jitter(r, 1<<63-1, .5))
}

func ExampleFake() {
	clk := clock.NewFake(time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	rang := make(chan time.Time)
	go func() { rang <- <-clk.After(time.Hour) }() // the code under test

	clk.BlockUntil(1)
	clk.Advance(time.Hour)
	fmt.Println((<-rang).Format(time.Kitchen))
	// Output: 1:00PM
}
