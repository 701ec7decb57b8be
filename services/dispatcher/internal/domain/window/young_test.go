package window_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// newDelayed is a sim of a queue whose messages must be ten seconds old.
func newDelayed(t testing.TB, mode queue.Mode) *sim {
	t.Helper()
	s := newSim(t, mode, queue.Block)
	s.p.Delay = 10 * time.Second
	s.reload()
	return s
}

func (s *sim) pushNow(hashes ...uint64) { s.log.AppendAt(s.mem.Now(), hashes...) }

func TestAMessageIsHandedOutWhenItIsOldEnoughAndNotBefore(t *testing.T) {
	t.Parallel()
	s := newDelayed(t, queue.Ordered)
	s.pushNow(1, 2)
	s.wait(4 * time.Second)
	s.pushNow(1)
	first := s.mem.Now().Add(6 * time.Second)

	require.Equal(t, window.Nothing, s.pop(9).Result)
	require.Equal(t, window.Nothing, s.popKey(2, 9).Result)
	wake, ok := s.v.NextWake()
	require.True(t, ok, "who waits is woken then")
	require.Equal(t, first, wake)
	s.wait(6*time.Second - time.Microsecond)
	require.Equal(t, window.Nothing, s.pop(9).Result)
	s.wait(time.Microsecond)

	require.Equal(t, at(1), offsets(s.popKey(2, 9)))
	got := s.pop(9)
	require.Equal(t, at(0), offsets(got), "the last one is too young")
	s.ackAll(got.Epoch)
	require.Equal(t, window.Nothing, s.pop(9).Result)
	s.wait(4 * time.Second)
	require.Equal(t, at(2), offsets(s.pop(9)))
}

func TestAClockThatIsAheadHandsOutNothingEarly(t *testing.T) {
	t.Parallel()
	s := newDelayed(t, queue.Shared)
	s.pushNow(1)
	s.v.Advance(s.mem.Now().Add(time.Minute)) // this process believes so
	pop := &window.Pop{MaxMessages: 9, Lease: time.Second}
	s.log.Supply(s.v, pop)

	change, outs := s.v.Plan(s.mem.Now().Add(time.Minute), half, []window.Request{pop})

	require.Equal(t, window.Done, outs[0].Result)
	require.Equal(t, s.mem.Now().Add(10*time.Second), change.NotBefore, "the database has the last word")
}

func TestWhatWaitsToGrowOldIsNotAskedForAgainAndAgain(t *testing.T) {
	t.Parallel()
	s := newDelayed(t, queue.Ordered)
	for range 3 {
		s.pushNow(1, 2)
	}
	require.Equal(t, window.Nothing, s.pop(9).Result)

	_, some := s.v.Need(s.log.Head())
	_, named := s.v.NeedKey(2, s.log.Head(), 9)

	require.False(t, some || named, "no directory is wanted before it is old enough")
	s.wait(10 * time.Second)
	s.v.Advance(s.mem.Now())
	_, some = s.v.Need(s.log.Head())
	require.True(t, some)
}

func TestAnotherDelayHoldsForWhatIsNotHandedOutYet(t *testing.T) {
	t.Parallel()
	s := newDelayed(t, queue.Shared)
	s.pushNow(1, 1)
	s.wait(10 * time.Second)
	require.Equal(t, at(0), offsets(s.pop(1)), "and the other is listed")

	s.p.Delay = time.Minute
	s.v.SetPolicy(s.p)
	require.Equal(t, window.Nothing, s.pop(9).Result, "a longer one")
	s.p.Delay = 0
	s.v.SetPolicy(s.p)
	s.pushNow(1)

	require.Equal(t, at(1, 2), offsets(s.pop(9)), "none any more")
}

func TestAMessageThatFailedOrCameBackWaitsForNothingElse(t *testing.T) {
	t.Parallel()
	s := newDelayed(t, queue.Ordered)
	s.pushNow(1, 2)
	s.wait(10 * time.Second)
	got := s.pop(9)
	s.pushNow(3)
	s.settle(got.Epoch, nack(0))
	s.do(&window.Release{Epoch: got.Epoch})
	s.wait(time.Second)

	require.Equal(t, at(0, 1), offsets(s.pop(9)))
}

func TestADelayHoldsAfterASeekBack(t *testing.T) {
	t.Parallel()
	s := newDelayed(t, queue.Ordered)
	s.pushNow(1)
	s.wait(10 * time.Second)
	s.pushNow(2)
	s.ackAll(s.pop(9).Epoch)

	s.do(&window.Seek{To: 0, Deleted: &settled.Marks{}})

	require.Equal(t, at(0), offsets(s.pop(9)))
}
