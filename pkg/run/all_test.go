package run_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/run"
)

func TestMain(m *testing.M) {
	if how := os.Getenv(childVariable); how != "" {
		os.Exit(childMain(how))
	}
	goleak.VerifyTestMain(m)
}

// obedient runs until it is told to end and says so with the context's error.
func obedient(name string) run.Part {
	return run.Part{Name: name, Run: func(ctx context.Context) error {
		<-ctx.Done()
		return fmt.Errorf("loop: %w", ctx.Err())
	}}
}

var errBroken = errors.New("broken")

func failing(name string) run.Part {
	return run.Part{Name: name, Run: func(context.Context) error { return errBroken }}
}

func TestTheFirstFailureEndsAll(t *testing.T) {
	t.Parallel()
	err := run.All(t.Context(), obedient("a"), failing("b"), obedient("c"))
	require.EqualError(t, err, "b: broken", "who ends as told is not blamed")
	require.ErrorIs(t, err, errBroken)
}

func TestTheFirstEndEndsAll(t *testing.T) {
	t.Parallel()
	quick := run.Part{Name: "quick", Run: func(context.Context) error { return nil }}
	require.NoError(t, run.All(t.Context(), obedient("a"), quick))
}

func TestAllWaitsForEveryPartAndJoinsFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := clock.Real{}.Now()
		errSlow := errors.New("could not let go")
		slow := run.Part{Name: "slow", Run: func(ctx context.Context) error {
			<-ctx.Done()
			_ = clock.Real{}.Sleep(context.WithoutCancel(ctx), time.Minute)
			return errors.Join(ctx.Err(), errSlow)
		}}
		err := run.All(t.Context(), slow, failing("b"))
		require.ErrorIs(t, err, errBroken)
		require.ErrorIs(t, err, errSlow, "a failure joined to a cancellation is not lost")
		require.Equal(t, time.Minute, clock.Real{}.Since(start))
	})
}

func TestTheEndOfTheContextIsACleanEnd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("told to"))
	withCause := run.Part{Name: "sleeper", Run: func(ctx context.Context) error { return clock.Real{}.Sleep(ctx, time.Hour) }}
	require.NoError(t, run.All(ctx, obedient("a"), withCause))
	require.NoError(t, run.All(ctx), "nothing to run is no failure")
	require.NoError(t, run.Layers(ctx))
}

func TestCancellationWithoutBeingToldIsAFailure(t *testing.T) {
	t.Parallel()
	err := run.All(t.Context(), run.Part{Name: "odd", Run: func(context.Context) error { return context.Canceled }})
	require.EqualError(t, err, "odd: context canceled")
}

func TestAPanicIsAFailureWithItsStack(t *testing.T) {
	t.Parallel()
	err := run.All(t.Context(), obedient("a"), run.Part{Name: "bug", Run: func(context.Context) error { panic("oh no") }})
	require.ErrorIs(t, err, run.ErrPanic)
	require.ErrorContains(t, err, "bug: panic: oh no")
	require.ErrorContains(t, err, "all_test.go", "the stack says where")
}

func TestAGoroutineThatExitsIsAFailure(t *testing.T) {
	t.Parallel()
	err := run.All(t.Context(), obedient("a"), run.Part{Name: "gone", Run: func(context.Context) error {
		runtime.Goexit()
		return nil
	}})
	require.EqualError(t, err, "gone: its goroutine exited")
}

// recorder returns a part that takes a minute to stop and notes when it was told to and when it had.
func recorder(name string, log func(string)) run.Part {
	return run.Part{Name: name, Run: func(ctx context.Context) error {
		<-ctx.Done()
		log(name + " told")
		_ = clock.Real{}.Sleep(context.WithoutCancel(ctx), time.Minute)
		log(name + " ended")
		return nil
	}}
}

func TestLayersStopLastFirst(t *testing.T) {
	t.Parallel()
	for name, trigger := range map[string]run.Part{"context": obedient("trigger"), "failure": failing("trigger")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				events := make(chan string, 10)
				log := func(s string) { events <- s }
				done := make(chan error, 1)
				go func() {
					done <- run.Layers(ctx, []run.Part{recorder("engine", log), trigger}, []run.Part{recorder("front", log)})
				}()
				synctest.Wait()
				if name == "context" {
					require.Empty(t, events)
					cancel()
				}
				err := <-done
				close(events)
				var got []string
				for e := range events {
					got = append(got, e)
				}
				require.Equal(t, []string{"front told", "front ended", "engine told", "engine ended"}, got)
				require.Equal(t, name == "failure", errors.Is(err, errBroken))
			})
		})
	}
}

func TestStartAndStopAtRandomMoments(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		synctest.Test(t, func(t *testing.T) {
			var running atomic.Int32
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.Int64N(int64(100*time.Millisecond))))
			defer cancel()
			part := func(name string) run.Part {
				ends := time.Duration(r.Int64N(int64(200 * time.Millisecond)))
				fails := r.IntN(2) == 0
				return run.Part{Name: name, Run: func(ctx context.Context) error {
					running.Add(1)
					defer running.Add(-1)
					err := clock.Real{}.Sleep(ctx, ends)
					if err == nil && fails {
						return errBroken
					}
					return err
				}}
			}
			err := run.Layers(ctx, []run.Part{part("a"), part("b")}, []run.Part{part("c")}, []run.Part{part("d"), part("e")})
			require.Zero(t, running.Load(), "no part outlives Layers")
			if err != nil {
				require.ErrorIs(t, err, errBroken)
			}
		})
	}
}

func ExampleAll() {
	err := run.All(context.Background(),
		run.Part{Name: "reaper", Run: func(ctx context.Context) error {
			<-ctx.Done() // works until it is told to end
			return ctx.Err()
		}},
		run.Part{Name: "http", Run: func(context.Context) error {
			return errors.New("address already in use")
		}},
	)
	fmt.Println(err)
	// Output: http: address already in use
}
