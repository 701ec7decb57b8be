package window_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

func TestNamedPopReachesFarAheadOfTheOthers(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	for range 100 {
		s.log.Append(ofKeyOne(1000)...)
	}
	s.log.Append(1, 7, 1, 7)

	out := s.popKey(7, 5)
	s.ackAll(out.Epoch)
	empty := s.popKey(7, 5)
	s.log.Append(7)
	more := s.popKey(7, 5)
	s.reload()
	first := s.pop(1)

	require.Equal(t, at(100_001, 100_003), offsets(out))
	require.Equal(t, window.Nothing, empty.Result)
	require.Equal(t, at(100_004), offsets(more))
	require.Equal(t, at(0), offsets(first))
	require.EqualValues(t, 100_003, s.v.Depth(100_005))
}

func TestIdleNamedPopIsSearchedOnce(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(ofKeyOne(100)...)
	pop := &window.Pop{Named: true, Hash: 9, MaxMessages: 1, Lease: time.Second}

	first := s.log.Supply(s.v, pop)
	again := s.log.Supply(s.v, pop)

	require.Equal(t, 1, first)
	require.Equal(t, 0, again)
}

func TestNamedPopIsFilledBeyondWhatIsListed(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 7)
	s.pop(1)
	for range 3 {
		s.log.Append(1, 7)
	}

	out := s.popKey(7, 3)
	s.ackAll(out.Epoch)
	rest := s.popKey(7, 3)

	require.Equal(t, at(1, 3, 5), offsets(out))
	require.Equal(t, at(7), offsets(rest))
}

func TestSkippedMessageHoldsWhatLiesBehindIt(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1, 2)

	out := s.ask(&window.Pop{MaxMessages: 3, Lease: time.Second, Skip: at(0)})

	require.Equal(t, at(2), offsets(out))
}

func TestNextWakeIsTheEarliestRetryOrExpiry(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 2)
	_, idle := s.v.NextWake()
	start := s.mem.Now()
	out := s.popKey(1, 1)
	expiry, _ := s.v.NextWake()
	other := s.popKey(2, 1)
	s.settle(other.Epoch, nack(1))
	retry, _ := s.v.NextWake()

	require.False(t, idle)
	require.Equal(t, start.Add(30*time.Second), expiry)
	require.Equal(t, start.Add(time.Second), retry)
	require.Equal(t, window.KeyInfo{Leased: 1, Known: 2}, s.v.Key(1))
	require.Equal(t, window.KeyInfo{Waiting: 1, RetryAt: retry, Known: 2}, s.v.Key(2))
	require.NotZero(t, out.Epoch)
}

func TestSuspectsOfOnePartitionTravelOneAfterTheOther(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1, 1, 1, 1, 2)
	s.popKey(1, 3)
	s.wait(time.Minute)

	var got [][]window.Offset
	for range 5 {
		out := s.popKey(1, 10)
		got = append(got, offsets(out))
		s.ackAll(out.Epoch)
	}

	require.Equal(t, [][]window.Offset{at(0), at(1), at(2), at(3, 4), at()}, got)
	require.Empty(t, window.RowsOf(s.v).Retries)
}

func TestDueMessageWaitsForEarlierOnesThatAreNotListed(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(ofKeyOne(6)...)
	out := s.pop(6)
	s.settle(out.Epoch, window.Item{Offset: 5, Verdict: window.Nack, HasDelay: true})
	s.do(&window.Release{Epoch: out.Epoch})
	s.reload()
	window.SetLimits(s.v, 100, 2, 100, 10)
	window.Advance(s.v, s.mem.Now())

	first := s.pop(1)
	require.Equal(t, at(0), offsets(first))
	s.ackAll(first.Epoch)
	got := at(0)
	for range 3 {
		out := s.pop(6)
		got = append(got, offsets(out)...)
		s.ackAll(out.Epoch)
	}

	require.Equal(t, at(0, 1, 2, 3, 4, 5), got)
}

func TestAckFarAheadWritesOneRow(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	for range 50 {
		s.log.Append(ofKeyOne(1000)...)
	}
	s.log.Append(7, 7)

	for range 2 {
		out := s.popKey(7, 1)
		change, _ := s.v.Plan(s.mem.Now(), half, []window.Request{&window.Settle{Epoch: out.Epoch, Items: []window.Item{ackAll}}})
		require.Len(t, change.ChunkUpserts, 1)
		require.EqualValues(t, 0, change.Hot.Chunk)
		s.ackAll(out.Epoch)
	}
}
