package engine_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/retention"
	"postrider.dev/services/dispatcher/internal/loop"
	"postrider.dev/services/dispatcher/internal/store"
)

// watchedControl counts how many shards a trimmer looks at.
type watchedControl struct {
	*store.Control

	looked int
}

func (w *watchedControl) ShardsToTrim(ctx context.Context, known map[message.ShardID]message.Offset) (map[message.ShardID]retention.Shard, error) {
	w.looked += len(known)
	return w.Control.ShardsToTrim(ctx, known)
}

// restingTrimmer is a trimmer whose clock stands, with rounds a second apart.
func (n *node) restingTrimmer() (*loop.Trimmer, *watchedControl, *clock.Fake) {
	clk, w := clock.NewFake(time.Now()), &watchedControl{Control: n.control}
	return loop.NewTrimmer(w, n.Engine, clk, logger(n.t), prometheus.NewRegistry(), time.Second), w, clk
}

func TestAQueueIsNotLookedAtBeforeItsOldestSegmentIsDue(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"retention": "1h0m4s"}`)
	n.push("q", item("a", "old"))
	age(t, url) // due in four seconds
	n.push("q", item("a", "new"))
	trim, seen, clk := n.restingTrimmer()
	round := func() int {
		before := seen.looked
		require.NoError(t, trim.Round(t.Context()))
		return seen.looked - before
	}
	require.Equal(t, 1, round())
	require.Zero(t, round())
	exec(t, session(t, url), "UPDATE dispatcher.segments SET created_at = created_at - interval '4 seconds'")

	clk.Advance(5 * time.Second)

	require.Equal(t, 1, round(), "it is due")
	require.Equal(t, 1, count(t, url, "SELECT count(*) FROM dispatcher.segments"))
	require.Equal(t, 1, round(), "there may be more to take")
	require.Zero(t, round())
	clk.Advance(9 * time.Second)
	require.Zero(t, round())
	clk.Advance(time.Second)
	require.Equal(t, 1, round(), "whatever it says, now and then")
}

func TestAQueueWhoseRetentionWasShortenedIsTrimmedInTheNextRound(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"retention": "2h0m0s"}`)
	n.push("q", item("a", "old"))
	age(t, url)
	n.push("q", item("a", "new"))
	trim, seen, _ := n.restingTrimmer()
	require.NoError(t, trim.Round(t.Context()))
	require.NoError(t, trim.Round(t.Context()))
	require.Equal(t, 1, seen.looked, "it rests")

	n.set(url, `{"retention": "30m0s"}`)
	require.NoError(t, trim.Round(t.Context()))

	require.Equal(t, 1, count(t, url, "SELECT count(*) FROM dispatcher.segments"))
}

func TestAQueueThatIsBoundedByBytesOrByWhatIsSettledNeverRests(t *testing.T) {
	t.Parallel()
	for i, config := range []string{`{"retention": "2h0m0s", "retention_bytes": 1000000}`, `{"retention": "2h0m0s", "retention_settled": true}`} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			url := database(t)
			n := newNode(t, url, nodeOptions{})
			n.set(url, config)
			n.push("q", item("a", "1"))
			trim, seen, _ := n.restingTrimmer()
			for range 3 {
				require.NoError(t, trim.Round(t.Context()))
			}
			require.Equal(t, 3, seen.looked)
		})
	}
}
