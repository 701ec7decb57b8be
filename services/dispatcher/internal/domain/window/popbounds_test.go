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
