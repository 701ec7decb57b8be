package answers_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/services/ingress/internal/engine/answers"
)

const free = answers.FreeBytes

func TestSmallAnswersAlwaysHaveRoomAndLargeOnesWaitInTurn(t *testing.T) {
	t.Parallel()
	b, err := answers.New(100, prometheus.NewRegistry())
	require.NoError(t, err)
	first := b.TryTake(free + 80)
	require.NotNil(t, first)
	require.EqualValues(t, 20, b.Free())
	require.Nil(t, b.TryTake(free+21))
	require.NotNil(t, b.TryTake(free), "it counts for nothing")

	got := make(chan *answers.Hold)
	go func() {
		h, err := b.Take(context.WithoutCancel(t.Context()), 1<<40) // as much as there is
		if err == nil {
			got <- h
		}
	}()
	require.Eventually(t, func() bool { return b.Free() == 0 }, 10*time.Second, time.Millisecond)
	require.Nil(t, b.TryTake(free+1), "nobody overtakes who waits")
	require.True(t, first.Resize(free+10))
	require.EqualValues(t, 10, first.Counted())
	first.Release()
	first.Release()
	second := <-got
	require.EqualValues(t, 100, second.Counted())
	require.False(t, b.TryTake(0).Resize(free+1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.Take(ctx, free+1)
	require.ErrorIs(t, err, context.Canceled)
	second.Release()
	require.False(t, second.Resize(1), "what is released holds nothing any more")
	require.EqualValues(t, 100, b.Free())
}

func TestNeverMoreIsHeldThanThereIs(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b, err := answers.New(1000, prometheus.NewRegistry())
		require.NoError(t, err)
		var holds []*answers.Hold
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			n := free + rapid.Int64Range(-10, 700).Draw(t, "bytes")
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				if h := b.TryTake(n); h != nil {
					holds = append(holds, h)
				}
			case 1:
				if len(holds) > 0 {
					rapid.SampledFrom(holds).Draw(t, "hold").Resize(n)
				}
			case 2:
				if len(holds) > 0 {
					rapid.SampledFrom(holds).Draw(t, "hold").Release()
				}
			}
			sum := int64(0)
			for _, h := range holds {
				sum += h.Counted()
			}
			require.Equal(t, 1000-sum, b.Free())
		}
		var all sync.WaitGroup
		for _, h := range holds {
			all.Go(h.Release)
		}
		all.Wait()
		require.EqualValues(t, 1000, b.Free())
	})
}
