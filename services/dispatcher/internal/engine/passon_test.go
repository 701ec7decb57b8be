package engine

import (
	"container/list"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/dispatcher/internal/domain/placement"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// woken is a pop that was parked on a group of two lanes and woken for the low one, while something came up in the high one too.
func woken(t *testing.T) (p *pop, low, high *gshard) {
	t.Helper()
	e := &Engine{clk: clock.NewFake(time.Unix(100, 0)), rand: least{}, cfg: Defaults(), metrics: newMetrics(prometheus.NewRegistry())}
	e.poller, e.alarm = newPoller(e), newAlarm(e)
	g := &group{e: e, layout: placement.Of(2, 2), named: map[uint64]*list.List{}}
	lane := newWorkLane(e)
	for i := range 2 {
		g.shards = append(g.shards, &gshard{id: window.GroupShardID(i), index: i, grp: g, shard: &shard{}, lane: lane})
	}
	p = &pop{g: g, want: window.Pop{MaxMessages: 1, MaxBytes: 1}, done: make(chan struct{}), seqs: make([]uint64, 2)}
	g.mu.Lock()
	g.park(p)
	g.mu.Unlock()
	low, high = g.shards[0], g.shards[1]
	high.seq.Add(1)

	require.Empty(t, g.take(low, func(uint64) bool { return true }), "it is not planned on the low lane first")
	require.Len(t, high.pending, 1)
	require.Empty(t, low.pending)
	return p, low, high
}

// answer ends what is pending on a group-shard.
func answer(g *gshard, out window.Outcome) {
	r := g.pending[0]
	g.pending = nil
	r.done(out, 1, g.seq.Load(), nil)
}

// The message that it was woken for would else lie there beside others who wait, until something happens.
func TestAPopThatIsServedFromAHigherLanePassesItsWakeOn(t *testing.T) {
	t.Parallel()
	p, low, high := woken(t)

	answer(high, window.Outcome{Result: window.Done, Messages: []window.Message{{}}})

	require.Equal(t, popFinished, p.state)
	require.True(t, low.feed, "the low lane looks for another who waits")
	require.Equal(t, queued, low.state)
}

func TestAPopThatAHigherLaneHasNothingForComesBackToItsWake(t *testing.T) {
	t.Parallel()
	p, low, high := woken(t)

	answer(high, window.Outcome{Result: window.Nothing})
	require.Len(t, low.pending, 1)
	answer(low, window.Outcome{Result: window.Done, Messages: []window.Message{{}}})

	require.Equal(t, popFinished, p.state)
	require.False(t, low.feed, "its wake was used")
}
