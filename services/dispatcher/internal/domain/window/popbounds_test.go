package window_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

func TestAPopGivesMessagesOfAsManyPartitionsAsItMayAndNoMore(t *testing.T) {
	t.Parallel()
	for _, mode := range []queue.Mode{queue.Ordered, queue.Shared} {
		s := newSim(t, mode, queue.Block)
		s.log.Append(1, 2, 1, 3, 2, 4, 3, 1)

		one := s.ask(&window.Pop{MaxMessages: 8, MaxPartitions: 1, Lease: time.Second})
		two := s.ask(&window.Pop{MaxMessages: 8, MaxPartitions: 2, Lease: time.Second})
		rest := s.ask(&window.Pop{MaxMessages: 8, Lease: time.Second})

		require.Equal(t, at(0, 2, 7), offsets(one), "%s: all of the first partition, and none of another", mode)
		require.Equal(t, at(1, 3, 4, 6), offsets(two), mode)
		require.Equal(t, at(5), offsets(rest), mode)
	}
}

func TestAPopOfSeveralPartitionsGivesNoMoreBytesThanItMay(t *testing.T) {
	t.Parallel()
	fits := message.WireBound(100) + message.WireBound(103) + message.WireBound(101)
	for _, mode := range []queue.Mode{queue.Ordered, queue.Shared} {
		for limit, want := range map[int64][]window.Offset{fits: at(0, 1, 3), fits - 1: at(0, 3)} {
			s := newSim(t, mode, queue.Block)
			s.log.Append(1, 2, 3, 1, 2) // of 100 to 104 bytes

			require.Equal(t, want, offsets(s.ask(&window.Pop{MaxMessages: 5, MaxBytes: limit, Lease: time.Second})), "%s, %d bytes", mode, limit)
		}
	}
}

// attempts is which attempt each message is, and how many of those before it failed.
func attempts(out window.Outcome) [][2]int {
	var list [][2]int
	for _, m := range out.Messages {
		list = append(list, [2]int{m.Attempt, m.Failures})
	}
	return list
}

func TestDeliveriesAndFailuresAreCountedApart(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1)

	require.Equal(t, [][2]int{{1, 0}, {1, 0}}, attempts(s.pop(2)))
	s.wait(31 * time.Second) // two travelled together: nobody knows which of them it was
	alone := s.pop(2)
	require.Equal(t, [][2]int{{2, 0}}, attempts(alone), "delivered twice, and no failure of its own")
	s.do(&window.Release{Epoch: alone.Epoch})
	again := s.pop(2)
	require.Equal(t, [][2]int{{2, 0}}, attempts(again), "a release is neither")
	s.settle(again.Epoch, nack(0))
	s.wait(time.Second)
	require.Equal(t, [][2]int{{3, 1}}, attempts(s.pop(1)), "a nack is a failure")
	s.wait(31 * time.Second)
	require.Equal(t, at(), offsets(s.pop(1)), "it backs off")
	s.wait(time.Hour)
	require.Equal(t, [][2]int{{4, 2}}, attempts(s.pop(1)), "and so is an expiry, now that it travelled alone")
}

func TestInSharedModeAFailedMessageWaitsAloneAndItsPartitionGoesOn(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Shared, queue.Block)
	s.log.Append(1, 1, 1)
	first := s.pop(1)

	s.settle(first.Epoch, nack(0))

	require.Equal(t, at(1, 2), offsets(s.pop(5)))
	require.Equal(t, at(), offsets(s.pop(5)))
	s.wait(time.Second)
	require.Equal(t, at(0), offsets(s.pop(5)))
}
