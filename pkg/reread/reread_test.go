package reread_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/reread"
)

// truth is a number that can be away.
type truth struct{ number, away, reads atomic.Int64 }

func (s *truth) read(context.Context) (int64, error) {
	s.reads.Add(1)
	if s.away.Load() > 0 {
		return 0, errors.New("away")
	}
	return s.number.Load(), nil
}

// bubble runs play with a Value over a truth that is read each minute.
func bubble(t *testing.T, play func(t *testing.T, s *truth, v *reread.Value[int64])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &truth{}
		v := reread.New(clock.Real{}, zap.NewNop(), func() time.Duration { return time.Minute }, s.read)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		s.away.Store(1)
		go func() { ended <- v.Run(ctx) }()
		play(t, s, v)
		cancel()
		require.NoError(t, <-ended)
	})
}

// await returns how long it takes until the value is n.
func await(v *reread.Value[int64], n int64) time.Duration {
	began := clock.Real{}.Now()
	for {
		value, known, changed := v.Watch()
		if known && value == n {
			return clock.Real{}.Since(began)
		}
		<-changed
	}
}

func TestAValueIsUnknownUntilItsTruthWasReadOnce(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *truth, v *reread.Value[int64]) {
		soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := v.Await(soon)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, known := v.Current()
		require.False(t, known)

		s.away.Store(0)

		require.Less(t, await(v, 0), 2*time.Second)
		value, err := v.Await(t.Context())
		require.NoError(t, err)
		require.Zero(t, value)
	})
}

func TestAPromptMakesItBeReadAtOnceAndWithoutOneThePeriodDoes(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *truth, v *reread.Value[int64]) {
		s.away.Store(0)
		await(v, 0)

		s.number.Store(1)
		v.Look()
		prompted := await(v, 1)
		s.number.Store(2)
		unprompted := await(v, 2)

		require.LessOrEqual(t, prompted, 20*time.Millisecond)
		require.Greater(t, unprompted, 30*time.Second)
		require.Less(t, unprompted, 70*time.Second)
	})
}

func TestAFloodOfPromptsCostsABoundedNumberOfReads(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *truth, v *reread.Value[int64]) {
		s.away.Store(0)
		await(v, 0)
		before := s.reads.Load()

		for range 1000 {
			v.Look()
			require.NoError(t, clock.Real{}.Sleep(t.Context(), time.Millisecond))
		}

		require.LessOrEqual(t, s.reads.Load()-before, int64(102))
	})
}

func TestWhileTheTruthIsAwayTheLastReadingStays(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, s *truth, v *reread.Value[int64]) {
		s.away.Store(0)
		s.number.Store(7)
		await(v, 7)
		s.away.Store(1)
		before := s.reads.Load()
		v.Look()
		for s.reads.Load() < before+3 {
			require.NoError(t, clock.Real{}.Sleep(t.Context(), time.Second))
		}

		value, known := v.Current()

		require.True(t, known)
		require.EqualValues(t, 7, value)
	})
}

func ExampleValue() {
	ctx, cancel := context.WithCancel(context.Background())
	limit := reread.New(clock.Real{}, zap.NewNop(), func() time.Duration { return time.Minute },
		func(context.Context) (int, error) { return 100, nil })
	ended := make(chan error, 1)
	go func() { ended <- limit.Run(ctx) }()

	n, err := limit.Await(ctx)
	fmt.Println(n, err)
	cancel()
	fmt.Println(<-ended)
	// Output:
	// 100 <nil>
	// <nil>
}
