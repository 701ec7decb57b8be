package window_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

func TestCrasherTakesNoNeighbours(t *testing.T) {
	t.Parallel()
	for _, mode := range []queue.Mode{queue.Ordered, queue.Shared} {
		for _, poison := range []window.Offset{0, 4, 9} {
			s := newSim(t, mode, queue.Block)
			s.p.MaxAttempts = 1
			s.reload()
			s.log.Append(1, 1, 2, 2, 2, 3, 1, 4, 5, 1)

			for range 40 {
				out := s.pop(10)
				if slices.Contains(offsets(out), poison) {
					s.wait(31 * time.Second) // the consumer dies
					continue
				}
				s.ackAll(out.Epoch)
			}

			require.EqualValues(t, 0, s.v.Depth(10), "everything is settled")
			dead := s.mem.DeadLetters()
			require.Len(t, dead, 1, "%s, poison %d", mode, poison)
			require.Equal(t, poison, dead[0].Offset)
			require.Equal(t, window.DeadExpired, dead[0].Reason)
			require.Equal(t, 1, dead[0].Failures)
			require.Empty(t, window.RowsOf(s.v).Retries, "no mark is left behind")
		}
	}
}

func TestExpiredLeaseThatNobodyReclaimedIsAckedAndRenewed(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1)
	out := s.pop(1)
	s.wait(time.Hour)

	renewed := s.do(&window.Renew{Epoch: out.Epoch, Lease: time.Second})[0]
	acked := s.settle(out.Epoch, ack(0))

	require.Equal(t, window.Done, renewed.Result)
	require.Equal(t, window.Done, acked.Items[0].Result)
}

func TestReclaimedLeaseIsStaleAndChangesNothing(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1, 2)
	old := s.pop(2)
	s.wait(31 * time.Second)
	again := s.popKey(1, 5)
	version := s.v.Version()

	outs := s.do(&window.Settle{Epoch: old.Epoch, Items: []window.Item{ack(0), nack(1), ackAll}},
		&window.Renew{Epoch: old.Epoch, Lease: time.Hour}, &window.Release{Epoch: old.Epoch})

	require.Equal(t, at(0), offsets(again), "suspects travel alone")
	require.Equal(t, version, s.v.Version())
	for _, o := range outs {
		require.Equal(t, window.Stale, o.Result)
		require.True(t, o.Refusal)
	}
}

func TestRepeatedAckIsAlreadySettled(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1)
	out := s.pop(2)
	s.settle(out.Epoch, ack(0))

	again := s.settle(out.Epoch, ack(0))
	s.ackAll(out.Epoch)
	gone := s.settle(out.Epoch, ack(0), ack(1))

	require.Equal(t, window.AlreadySettled, again.Items[0].Result)
	require.True(t, again.Refusal)
	require.Equal(t, window.AlreadySettled, gone.Items[1].Result)
	require.Equal(t, window.AlreadySettled, gone.Result)
}

func TestNackStopsItsPartitionAndReturnsTheRest(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1, 1, 2, 2)
	out := s.pop(5)

	res := s.settle(out.Epoch, ack(0), nack(1))
	blocked := s.popKey(1, 5)
	late := s.settle(out.Epoch, ack(2), ack(3))
	s.wait(time.Second)
	again := s.popKey(1, 5)

	require.Equal(t, window.Retrying, res.Items[1].Result)
	require.Equal(t, time.Second, res.Items[1].Delay)
	require.Equal(t, window.Nothing, blocked.Result)
	require.Equal(t, window.NotHeld, late.Items[0].Result, "what came back is no longer held")
	require.Equal(t, window.Done, late.Items[1].Result, "other partitions of the lease stay leased")
	require.Equal(t, at(1, 2), offsets(again))
	require.Equal(t, 2, again.Messages[0].Attempt)
	require.Equal(t, 1, again.Messages[0].Failures)
	require.Equal(t, 1, again.Messages[1].Attempt, "it came back uncharged")
}

func TestAckBesideANackOfAnEarlierMessageComesBack(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1, 1)
	out := s.pop(3)

	res := s.settle(out.Epoch, nack(0), ack(1))
	s.wait(time.Second)
	again := s.pop(5)

	require.Equal(t, window.Retrying, res.Items[0].Result)
	require.Equal(t, window.Returned, res.Items[1].Result, "done or not, it comes again behind the one that failed")
	require.Equal(t, at(0, 1, 2), offsets(again))
}

func TestNackOfAWholeLeaseChargesTheFirstOfEachPartition(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.p.MaxAttempts = 1
	s.reload()
	s.log.Append(1, 1, 1, 2, 2)
	out := s.pop(5)

	s.settle(out.Epoch, window.Item{Offset: window.MaxOffset, Through: true, Verdict: window.Nack})
	again := s.pop(5)

	dead := s.mem.DeadLetters()
	require.Len(t, dead, 2)
	require.EqualValues(t, 0, dead[0].Offset)
	require.EqualValues(t, 3, dead[1].Offset)
	require.Equal(t, at(1, 2, 4), offsets(again))
	require.Equal(t, 1, again.Messages[0].Attempt)
}

func TestSkipLetsLaterMessagesGoOn(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Skip)
	s.log.Append(1, 1, 1, 1)
	out := s.pop(2)

	s.settle(out.Epoch, nack(0))
	held := s.pop(5)
	s.ackAll(out.Epoch)
	next := s.pop(1)
	s.ackAll(next.Epoch)
	s.wait(time.Second)
	again := s.pop(5)

	require.Equal(t, window.Nothing, held.Result, "one lease a partition")
	require.Equal(t, at(2), offsets(next))
	require.Equal(t, at(0, 3), offsets(again))
}

func TestLastFailureIsADeadLetterAtThatMoment(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.p.MaxAttempts = 3
	s.reload()
	s.log.Append(1, 1)

	var res window.ItemResult
	for range 3 {
		out := s.pop(1)
		require.Equal(t, at(0), offsets(out))
		res = s.settle(out.Epoch, nack(0)).Items[0]
		s.wait(time.Second)
	}
	next := s.pop(5)

	require.Equal(t, window.DeadLettered, res.Result)
	require.Equal(t, at(1), offsets(next), "its partition goes on")
	dead := s.mem.DeadLetters()
	require.Len(t, dead, 1)
	require.Equal(t, 3, dead[0].Failures)
	require.Equal(t, 3, dead[0].Deliveries)
	require.Equal(t, "no", dead[0].LastError)
	require.Equal(t, window.DeadAttempts, dead[0].Reason)
}

func TestRejectIsADeadLetterAndKeepsTheRestLeased(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1)
	out := s.pop(2)

	res := s.settle(out.Epoch, window.Item{Offset: 0, Verdict: window.Reject, Reason: "cannot be parsed"}, ack(1))

	require.Equal(t, window.DeadLettered, res.Items[0].Result)
	require.Equal(t, window.Done, res.Items[1].Result)
	require.Equal(t, "cannot be parsed", s.mem.DeadLetters()[0].LastError)
	require.EqualValues(t, 2, s.v.Low())
}

func TestRenewNeverShortens(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1)
	out := s.pop(1)

	s.do(&window.Renew{Epoch: out.Epoch, Lease: time.Second})
	s.wait(29 * time.Second)
	early := s.pop(1)
	s.wait(2 * time.Second)
	due := s.do(&window.Reclaim{})[0]

	require.Equal(t, window.Nothing, early.Result)
	require.Equal(t, 1, due.Count)
}

func TestReleaseLeavesNoTrace(t *testing.T) {
	t.Parallel()
	for _, mode := range []queue.Mode{queue.Ordered, queue.Shared} {
		s := newSim(t, mode, queue.Block)
		s.log.Append(1, 2, 1)
		first := s.pop(1)
		s.settle(first.Epoch, nack(0))
		s.wait(time.Second)
		before := window.RowsOf(s.v)

		out := s.pop(3)
		s.do(&window.Release{Epoch: out.Epoch})

		after := window.RowsOf(s.v)
		require.Equal(t, before.Version+2, after.Version)
		before.Version = after.Version
		require.Equal(t, before, after)
		require.Equal(t, 2, s.popKey(1, 1).Messages[0].Attempt, "the released delivery does not count")
	}
}

func TestReleaseOfOneMessageReturnsTheLaterOnesOfItsPartition(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1, 1, 2)
	out := s.pop(4)

	released := s.do(&window.Release{Epoch: out.Epoch, Offsets: at(1)})[0]
	held := s.popKey(1, 4)
	s.settle(out.Epoch, ack(0))
	again := s.popKey(1, 4)

	require.Equal(t, 2, released.Count)
	require.Equal(t, window.Nothing, held.Result)
	require.Equal(t, at(1, 2), offsets(again))
}

func TestAckFreesItsKeyForThePopBesideIt(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(ofKeyOne(6)...)
	out := s.pop(2)

	outs := s.do(&window.Pop{MaxMessages: 2, Lease: time.Second}, &window.Settle{Epoch: out.Epoch, Items: []window.Item{ackAll}})

	require.Equal(t, at(2, 3), offsets(outs[0]))
	require.Equal(t, window.Done, outs[1].Items[0].Result)
}

func TestSharedModeSettlesOutOfOrder(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Shared, queue.Block)
	s.log.Append(ofKeyOne(6)...)
	x, y, z := s.pop(2), s.pop(2), s.pop(2)

	s.ackAll(y.Epoch)
	s.settle(z.Epoch, ack(5), nack(4))
	s.settle(x.Epoch, ack(1))

	require.Equal(t, at(2, 3), offsets(y))
	require.EqualValues(t, 0, s.v.Low())
	require.EqualValues(t, 2, s.v.Depth(6))
}

func TestThroughSettlesWhatIsStillOpenUpToAMessage(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 2, 1, 2, 1)
	out := s.pop(5)

	one := s.settle(out.Epoch, window.Item{Offset: 2, Through: true, Keyed: true, Hash: 1, Verdict: window.Ack})
	rest := s.settle(out.Epoch, window.Item{Offset: 3, Through: true, Verdict: window.Ack})
	none := s.settle(out.Epoch, window.Item{Offset: 3, Through: true, Verdict: window.Ack})

	require.Equal(t, 2, one.Items[0].Count)
	require.Equal(t, 2, rest.Items[0].Count)
	require.Equal(t, window.AlreadySettled, none.Items[0].Result)
	require.EqualValues(t, 4, s.v.Low())
}

func TestMessageIsSettledWithoutALeaseWhereverItIs(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1, 1, 2)
	leased := s.popKey(1, 1)

	outs := s.do(&window.SettleAt{Offset: 0, Hash: 1, Verdict: window.Ack}, &window.SettleAt{Offset: 2, Hash: 1, Verdict: window.Reject, Reason: "gone"},
		&window.SettleAt{Offset: 0, Hash: 1, Verdict: window.Ack})
	late := s.settle(leased.Epoch, ack(0))
	next := s.popKey(1, 5)

	require.Equal(t, window.Done, outs[0].Result)
	require.Equal(t, window.DeadLettered, outs[1].Result)
	require.Equal(t, window.AlreadySettled, outs[2].Result)
	require.Equal(t, window.AlreadySettled, late.Items[0].Result)
	require.Equal(t, at(1), offsets(next))
}

func TestFirstMessageIsGivenWhateverItsSize(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Shared, queue.Block)
	s.log.Append(1, 1, 1, 1) // of 100 to 103 bytes

	tiny := s.ask(&window.Pop{MaxMessages: 4, MaxBytes: 1, Lease: time.Second})
	two := s.ask(&window.Pop{MaxMessages: 4, MaxBytes: message.WireBound(101) + message.WireBound(102), Lease: time.Second})

	require.Equal(t, at(0), offsets(tiny))
	require.Equal(t, at(1, 2), offsets(two))
}

func TestAfterAnotherShardEvenTheFirstMessageHasToFit(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Shared, queue.Block)
	s.log.Append(1, 1)

	none := s.ask(&window.Pop{MaxMessages: 4, MaxBytes: message.WireBound(100) - 1, Started: true, Lease: time.Second})
	one := s.ask(&window.Pop{MaxMessages: 4, MaxBytes: message.WireBound(100), Started: true, Lease: time.Second})

	require.Equal(t, window.Nothing, none.Result)
	require.Empty(t, none.Messages)
	require.Equal(t, at(0), offsets(one))
}

func TestDropIsRefusedWhileLeasedUnlessForced(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1)
	out := s.pop(1)

	refused := s.do(&window.Drop{})[0]
	forced := s.do(&window.Drop{Force: true})[0]
	late := s.settle(out.Epoch, ack(0))

	require.Equal(t, window.StopLeased, refused.Stop)
	require.True(t, refused.Refusal)
	require.Equal(t, window.Done, forced.Result)
	require.Equal(t, window.Stale, late.Result)
	_, err := s.mem.Read()
	require.Error(t, err)
}
