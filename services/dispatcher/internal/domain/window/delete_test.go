package window_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// delete takes a message away, and returns the change that does so.
func (s *sim) delete(off window.Offset) (window.Change, window.Outcome) {
	s.t.Helper()
	hash, ok := s.log.Hash(off)
	require.True(s.t, ok)
	change, outs := s.v.Plan(s.mem.Now(), half, []window.Request{&window.Delete{Offset: off, Hash: hash}})
	if !change.Empty() {
		stamp, err := s.mem.Apply(change)
		require.NoError(s.t, err)
		s.v.Commit(change, stamp)
	}
	return change, outs[0]
}

func TestADeletedMessageLeavesItsLeaseAndItsNeighboursStay(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1, 1)
	held := s.pop(9)

	_, out := s.delete(1)

	require.Equal(t, window.Done, out.Result)
	require.Equal(t, at(0, 2), s.v.Held(held.Epoch))
	require.Equal(t, window.AlreadySettled, s.settle(held.Epoch, ack(1)).Items[0].Result, "its consumer is not frightened")
	require.Equal(t, window.Done, s.settle(held.Epoch, ack(0), ack(2)).Result)
	s.reload()
	require.Zero(t, s.v.Depth(s.log.Head()))
}

func TestADeletedMessageThatWasAloneInItsLeaseFreesItsPartition(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1)
	held := s.pop(1)

	s.delete(0)

	require.Equal(t, window.AlreadySettled, s.settle(held.Epoch, ack(0)).Items[0].Result)
	require.Equal(t, window.Stale, s.do(&window.Renew{Epoch: held.Epoch, Lease: time.Minute})[0].Result)
	require.Equal(t, at(1), offsets(s.pop(9)))
}

func TestADeletedMessageThatWaitsForItsRetryNoLongerHoldsItsPartition(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1)
	s.settle(s.pop(1).Epoch, nack(0))
	require.Equal(t, window.Nothing, s.pop(9).Result)

	change, _ := s.delete(0)

	require.Equal(t, at(0), change.RetryDeletes)
	require.Empty(t, change.DeadLetters)
	require.Equal(t, at(1), offsets(s.pop(9)))
}

func TestADeleteSaysNothingOfTheGroupsBeingInUse(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Shared, queue.Block)
	s.log.Append(1, 1)

	change, _ := s.delete(1)
	again, out := s.delete(1)

	require.False(t, change.Active, "retention must not wait for a group because somebody else deletes messages")
	require.Equal(t, window.AlreadySettled, out.Result)
	require.True(t, again.Empty())
	require.Equal(t, at(0), offsets(s.pop(9)))
}
