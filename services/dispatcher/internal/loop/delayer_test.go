package loop_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/run/runtest"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/loop"
	"postrider.dev/services/dispatcher/internal/store"
)

// waiting is a database in which messages wait, with a clock of its own, and the engine beside it.
type waiting struct {
	clk     *clock.Fake
	wake    chan struct{}
	arrived chan struct{}

	mu       sync.Mutex // guards the rest
	due      []time.Time
	busy     bool // another dispatcher has the turn
	broken   bool
	blocked  bool // what is due is of shard 1, and its key is missing
	withheld int
	moved    []time.Time
	looks    []time.Time // since
	next     []time.Time
}

func newWaiting() *waiting {
	return &waiting{clk: clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)), wake: make(chan struct{}, 1), arrived: make(chan struct{}, 8)}
}

func (w *waiting) NextDue(_ context.Context, since time.Time, except []message.ShardID) (now, next time.Time, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks = append(w.looks, since)
	if w.broken {
		return now, next, errBroken
	}
	for _, at := range w.due {
		if len(except) == 0 && !at.Before(since) && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return w.clk.Now(), next, nil
}

func (w *waiting) FlushDue(_ context.Context, since time.Time, except []message.ShardID) (store.Due, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.busy || len(except) > 0 {
		return store.Due{}, nil
	}
	if w.blocked {
		return store.Due{Blocked: []store.BlockedShard{{Shard: 1, Queue: "q", Err: store.ErrKeyMissing}}, More: true}, nil
	}
	for i, at := range w.due {
		if !at.Before(since) && !at.After(w.clk.Now()) {
			w.due = append(w.due[:i:i], w.due[i+1:]...)
			w.moved = append(w.moved, w.clk.Now())
			return store.Due{More: true}, nil
		}
	}
	return store.Due{}, nil
}

func (w *waiting) Arrived(due store.Due) {
	if due.More {
		w.arrived <- struct{}{}
	}
}

func (w *waiting) Withheld(store.BlockedShard) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.withheld++
}

func (w *waiting) DueSooner() <-chan struct{} { return w.wake }

func (w *waiting) WillLook(at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = append(w.next, at)
}

func (w *waiting) accept(at time.Time) {
	w.mu.Lock()
	w.due = append(w.due, at)
	w.mu.Unlock()
}

func (w *waiting) delayer() *loop.Delayer { return loop.NewDelayer(w, w, w.clk, zap.NewNop()) }

func TestTheDelayerMovesEachMessageWhenItIsDue(t *testing.T) {
	t.Parallel()
	w := newWaiting()
	start := w.clk.Now()
	w.accept(start.Add(-time.Hour))
	w.accept(start.Add(300 * time.Millisecond))
	round := w.delayer().Round

	wait, err := round(t.Context())
	require.NoError(t, err)
	w.clk.Advance(wait)
	next, err := round(t.Context())
	require.NoError(t, err)

	require.Equal(t, 300*time.Millisecond, wait)
	require.Equal(t, []time.Time{start, start.Add(wait)}, w.moved)
	require.InDelta(t, time.Second, next, float64(200*time.Millisecond), "nothing waits: the ceiling")
	require.Equal(t, time.Time{}, w.next[0], "the engine is told before anything is read")
	require.Equal(t, start.Add(wait), w.next[1])
}

func TestTheDelayerLooksAgainSoonWhileAnotherHasTheTurn(t *testing.T) {
	t.Parallel()
	w := newWaiting()
	w.busy = true
	w.accept(w.clk.Now())

	wait, err := w.delayer().Round(t.Context())

	require.NoError(t, err)
	require.Less(t, wait, 100*time.Millisecond)
	require.Positive(t, wait)
}

func TestTheDelayerIsWokenByAnEarlierMessageAndOutlivesFailures(t *testing.T) {
	t.Parallel()
	w := newWaiting()
	w.broken = true
	stop := runtest.Go(t, w.delayer().Run)
	w.clk.BlockUntil(1) // the first round has failed

	w.mu.Lock()
	w.broken = false
	w.mu.Unlock()
	w.clk.Advance(2 * time.Second)
	w.clk.BlockUntil(1)
	w.accept(w.clk.Now())
	w.wake <- struct{}{}

	<-w.arrived
	require.NoError(t, stop())
}

func TestTheDelayerSparesOldRowsButComesBackToThem(t *testing.T) {
	t.Parallel()
	w := newWaiting()
	round := w.delayer().Round
	_, err := round(t.Context())
	require.NoError(t, err)
	w.accept(w.clk.Now().Add(-time.Hour)) // left behind by an outage

	_, err = round(t.Context())
	require.NoError(t, err)
	spared := len(w.moved)
	w.clk.Advance(time.Minute)
	_, err = round(t.Context())
	require.NoError(t, err)

	require.Zero(t, spared)
	require.Len(t, w.moved, 1)
	require.Equal(t, []bool{true, false}, []bool{w.looks[0].IsZero(), w.looks[1].IsZero()})
}

func TestAShardThatCannotBeMovedIsPassedOverForAWhileAndOthersAreNotHeldUp(t *testing.T) {
	t.Parallel()
	w := newWaiting()
	w.blocked = true
	w.accept(w.clk.Now().Add(-time.Hour))
	round := w.delayer().Round

	for range 3 {
		wait, err := round(t.Context())
		require.NoError(t, err)
		require.Greater(t, wait, 500*time.Millisecond, "it is not asked for all the time")
		require.Equal(t, 1, w.withheld)
	}
	w.blocked = false
	w.clk.Advance(6 * time.Second)
	for range 2 {
		_, err := round(t.Context())
		require.NoError(t, err)
	}

	require.Len(t, w.moved, 1, "however long it has been due")
}
