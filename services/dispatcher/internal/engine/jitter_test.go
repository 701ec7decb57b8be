package engine

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
)

// least and most draw the ends of what a jitter may be.
type (
	least struct{}
	most  struct{}
)

func (least) Int64N(int64) int64 { return 0 }

func (most) Int64N(n int64) int64 { return n - 1 }

// sleepless is a clock on which every sleep is over at once, and noted.
type sleepless struct {
	*clock.Fake

	slept []time.Duration
}

func (c *sleepless) Sleep(_ context.Context, d time.Duration) error {
	c.slept = append(c.slept, d)
	return nil
}

// Many processes lose the same database at the same moment; they must not come back to it together.
func TestPausesBetweenTriesHaveFullJitterBelowADoublingCeiling(t *testing.T) {
	t.Parallel()
	clk := &sleepless{Fake: clock.NewFake(time.Unix(0, 0))}
	shortest, longest := &Engine{clk: clk, rand: least{}}, &Engine{clk: clk, rand: most{}}
	for n := range 9 {
		require.NoError(t, shortest.pauseBetween(t.Context(), n))
		require.NoError(t, longest.pauseBetween(t.Context(), n))
	}

	ms := time.Millisecond
	require.Equal(t, []time.Duration{
		0, 10 * ms, 0, 20 * ms, 0, 40 * ms, 0, 80 * ms, 0, 160 * ms, 0, 320 * ms, 0, 500 * ms, 0, 500 * ms, 0, 500 * ms,
	}, clk.slept)
}

// Dispatchers that were started together must not poll together.
func TestEveryPollIsJittered(t *testing.T) {
	t.Parallel()
	now := time.Unix(100, 0)
	cfg := Config{RepollMin: 100 * time.Millisecond, RepollMax: time.Second}
	away, cancel := context.WithCancel(t.Context())
	cancel()
	// dues tells when a group is polled first, after a miss and after news, and when a poll is tried again that failed.
	dues := func(r clock.Rand) []time.Duration {
		e := &Engine{clk: clock.NewFake(now), rand: r, cfg: cfg}
		p, g := newPoller(e), &group{e: e}
		var list []time.Duration
		p.watch(g, false)
		list = append(list, g.poll.due.Sub(now))
		for range 5 {
			p.again(g, false)
			list = append(list, g.poll.due.Sub(now))
		}
		p.failed(away, nil, context.Canceled)
		return append(list, p.retry.Sub(now))
	}

	earliest, latest := dues(least{}), dues(most{})

	for i, ms := range []int{100, 200, 400, 800, 1000, 1000, 100} {
		want := time.Duration(ms) * time.Millisecond
		require.Equal(t, want-want/5, earliest[i], "at %d", i)
		require.Equal(t, want+want/5, latest[i], "at %d", i)
	}
}

// What nothing comes to is asked about less and less often, and what lives as often as may be.
func TestRepollsOfWhatWaitsDoubleFromMissToMissAndBeginAnewAfterNews(t *testing.T) {
	t.Parallel()
	e := &Engine{clk: clock.NewFake(time.Unix(100, 0)), rand: least{}, cfg: Defaults()}
	p, g := newPoller(e), &group{e: e}
	var paces []time.Duration

	p.watch(g, false)
	for _, news := range []bool{false, false, false, false, false, true, false} {
		paces = append(paces, g.poll.interval)
		p.again(g, news)
		require.Equal(t, e.clk.Now().Add(g.poll.interval*4/5), g.poll.due)
	}

	ms := time.Millisecond
	require.Equal(t, []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1000 * ms, 1000 * ms, 100 * ms}, paces)
}
