package drain_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/internal/drain"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a Server that notes what is done to it and when.
type fake struct {
	start    time.Time
	steps    []string
	closed   chan struct{}
	failed   chan error // what Serve returns by itself
	inFlight time.Duration
	inflight drain.Inflight
}

func newFake(inFlight time.Duration) *fake {
	return &fake{start: clock.Real{}.Now(), closed: make(chan struct{}), failed: make(chan error, 1), inFlight: inFlight}
}

func (f *fake) note(step string) {
	f.steps = append(f.steps, step+" "+clock.Real{}.Since(f.start).String())
}

func (f *fake) server() drain.Server {
	return drain.Server{
		Serve: func() error {
			select {
			case err := <-f.failed:
				return err
			case <-f.closed:
				return errors.New("closed, which is no news")
			}
		},
		NotReady: func() { f.note("not ready") },
		GoAway:   func() { f.note("go away") },
		Shutdown: func(ctx context.Context) error {
			f.note("shutdown")
			return clock.Real{}.Sleep(ctx, f.inFlight)
		},
		Close: func() {
			select {
			case <-f.closed:
			default:
				f.note("close")
				close(f.closed)
			}
		},
		Inflight: &f.inflight,
	}
}

func TestTheOrderAndTimesOfADrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		f := newFake(2 * time.Second)
		require.NoError(t, drain.Run(ctx, clock.Real{}, 5*time.Second, 25*time.Second, f.server()))
		require.Equal(t, []string{"not ready 1h0m0s", "go away 1h0m5s", "shutdown 1h0m5s", "close 1h0m7s"}, f.steps)
	})
}

func TestADrainIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		f := newFake(time.Hour)
		require.ErrorIs(t, drain.Run(ctx, clock.Real{}, 0, 25*time.Second, f.server()), drain.ErrTimeout)
		require.Equal(t, []string{"not ready 0s", "go away 0s", "shutdown 0s", "close 25s"}, f.steps)

		f = newFake(time.Hour)
		require.NoError(t, drain.Run(ctx, clock.Real{}, 0, 0, f.server()), "no time was granted, so cutting off is as told")
		require.Equal(t, []string{"not ready 0s", "go away 0s", "close 0s"}, f.steps)
	})
}

func TestHandlersThatWereCutOffGetAMoment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		f := newFake(0)
		f.inflight.Add()
		go func() {
			<-f.closed
			_ = clock.Real{}.Sleep(t.Context(), 300*time.Millisecond)
			f.inflight.Done()
		}()
		require.NoError(t, drain.Run(ctx, clock.Real{}, 0, 0, f.server()))
		require.Equal(t, 300*time.Millisecond, clock.Real{}.Since(f.start))

		f = newFake(0)
		f.inflight.Add() // never done
		require.NoError(t, drain.Run(ctx, clock.Real{}, 0, 0, f.server()))
		require.Equal(t, time.Second, clock.Real{}.Since(f.start), "and no longer")
	})
}

func TestAServerThatFailsIsClosed(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, duringDelay := range []bool{false, true} {
		for want, err := range map[string]error{"serve: broken": broken, "serve: the server stopped without being told to": nil} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				f := newFake(0)
				done := make(chan error, 1)
				go func() { done <- drain.Run(ctx, clock.Real{}, time.Minute, time.Minute, f.server()) }()
				if duringDelay {
					cancel()
					synctest.Wait()
				}
				f.failed <- err
				require.EqualError(t, <-done, want)
				require.Contains(t, f.steps, "close 0s")
			})
		}
	}
}

func TestRandomEndsNeverHang(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	random := func() time.Duration { return time.Duration(r.Int64N(int64(time.Second))) }
	for range 500 {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), random())
			defer cancel()
			f := newFake(random())
			if r.IntN(2) == 0 {
				at := random()
				go func() {
					_ = clock.Real{}.Sleep(t.Context(), at)
					f.failed <- errors.New("broken")
				}()
			}
			_ = drain.Run(ctx, clock.Real{}, random(), random(), f.server())
			select {
			case <-f.closed:
			default:
				t.Error("not closed")
			}
			require.LessOrEqual(t, clock.Real{}.Since(f.start), 4*time.Second)
		})
	}
}

func TestInflightWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f drain.Inflight
		require.NoError(t, f.Wait(t.Context()))
		f.Add()
		f.Add()
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- f.Wait(t.Context()) }()
		}
		synctest.Wait()
		f.Done()
		synctest.Wait()
		require.Empty(t, done)
		f.Done()
		require.NoError(t, <-done)
		require.NoError(t, <-done)

		f.Add()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, f.Wait(ctx), context.Canceled)
	})
}
