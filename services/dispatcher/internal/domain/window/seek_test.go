package window_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// seekKey seeks the messages of one key.
func (s *sim) seekKey(hash uint64, to window.Offset) window.Outcome {
	s.t.Helper()
	return s.do(&window.Seek{To: to, Keyed: true, Hash: hash, Members: s.log.Members(hash)})[0]
}

func TestSeekingBackHandsOutAgainWhatWasAcked(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 2, 1)
	s.ackAll(s.pop(9).Epoch)

	out := s.do(&window.Seek{To: 1})[0]

	require.Equal(t, window.Outcome{Result: window.Done, From: 3}, out)
	require.Equal(t, at(1, 2), offsets(s.pop(9)))
}

func TestSeekingForwardSkips(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Shared, queue.Block)
	s.log.Append(1, 2, 1, 2)

	s.do(&window.Seek{To: 3})

	require.Equal(t, at(3), offsets(s.pop(9)))
}

func TestSeekFencesEveryLeaseAndForgetsFailures(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 2, 3)
	failed := s.popKey(1, 1)
	s.settle(failed.Epoch, nack(0))
	two, three := s.popKey(2, 1), s.popKey(3, 1)

	out := s.do(&window.Seek{To: 2})[0]

	require.Equal(t, 2, out.Leases)
	require.Equal(t, 2, out.Count)
	require.Zero(t, s.v.Waiting())
	require.Equal(t, window.AlreadySettled, s.settle(two.Epoch, ack(1)).Items[0].Result, "it was passed over")
	require.Equal(t, window.Stale, s.settle(three.Epoch, ack(2)).Items[0].Result, "it comes again")
	require.Equal(t, window.Stale, s.do(&window.Renew{Epoch: three.Epoch, Lease: time.Minute})[0].Result)
	require.Equal(t, 1, s.pop(9).Messages[0].Attempt)
}

func TestSeekOfOnePartitionTakesOnlyItsMessagesOutOfLeases(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 2, 1, 2, 3)
	s.ackAll(s.popKey(1, 1).Epoch)
	both, other := s.ask(&window.Pop{MaxMessages: 4, MaxPartitions: 2, Lease: time.Minute}), s.popKey(3, 1)
	require.Len(t, both.Messages, 3)

	out := s.seekKey(1, 0)

	require.Equal(t, window.Outcome{Result: window.Done, From: 2, Leases: 1, Count: 1}, out)
	require.Equal(t, at(1, 3), s.v.Held(both.Epoch), "the lease lives on without them")
	require.Equal(t, at(4), s.v.Held(other.Epoch))
	require.Equal(t, at(0, 2), offsets(s.popKey(1, 9)), "while the other partition is leased")
	require.Equal(t, window.NotHeld, s.settle(both.Epoch, ack(2)).Items[0].Result)
	require.Equal(t, window.Done, s.settle(both.Epoch, ack(1), ack(3)).Result)
	require.Equal(t, window.Done, s.settle(other.Epoch, ack(4)).Result)
	s.reload()
	require.EqualValues(t, 2, s.v.Depth(s.log.Head()))
}

func TestSeekOfAPartitionFarBackReachesChunksThatWereGone(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1)
	for range 5 {
		s.log.Append(make([]uint64, settled.ChunkLen)...)
	}
	s.log.Append(1)
	s.do(&window.Seek{To: s.log.Head()})

	s.seekKey(1, 0)
	s.reload()

	require.Equal(t, at(0, s.log.Head()-1), offsets(s.pop(9)))
	s.seekKey(1, s.log.Head())
	require.Equal(t, s.log.Head(), s.v.Low())
}

func TestADeletedMessageStaysSettledWhereverTheGroupStands(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1, 2)
	deleted := &settled.Marks{}
	deleted.Add(1)

	s.do(&window.Seek{To: 3, Deleted: deleted})
	s.do(&window.Seek{To: 0, Deleted: deleted})
	require.Equal(t, at(0, 2), offsets(s.pop(9)))

	s.do(&window.Seek{To: 3, Deleted: deleted})
	s.do(&window.Seek{To: 0, Keyed: true, Hash: 1, Members: s.log.Members(1), Deleted: deleted})
	require.Equal(t, at(0), offsets(s.pop(9)))
}

func TestASeekIsPlannedAlone(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1)

	outs := s.do(&window.Seek{To: 1}, &window.Pop{MaxMessages: 1})

	require.Equal(t, []window.Stop{window.StopNotAlone, window.StopNotAlone}, []window.Stop{outs[0].Stop, outs[1].Stop})
	require.Zero(t, s.v.Low())
}

func TestASeekOfAPartitionThatRewritesTooMuchIsRefused(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	members := &settled.Marks{}
	for no := range window.Offset(window.MaxSeekChunks + 1) {
		members.Add(no * settled.ChunkLen)
	}

	out := s.do(&window.Seek{Keyed: true, Hash: 1, Members: members, To: window.MaxOffset})[0]

	require.Equal(t, window.StopWide, out.Stop)
	require.EqualValues(t, 1, s.v.Version())
}
