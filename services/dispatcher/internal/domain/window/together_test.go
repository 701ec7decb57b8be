package window_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

func reject(off window.Offset) window.Item {
	return window.Item{Offset: off, Verdict: window.Reject, Reason: "bad"}
}

func results(out window.Outcome) []window.Result {
	list := make([]window.Result, len(out.Items))
	for i, item := range out.Items {
		list[i] = item.Result
	}
	return list
}

// verdictsOf are the results in the order of the offsets.
func verdictsOf(items []window.Item, out window.Outcome) map[window.Offset]window.Result {
	list := map[window.Offset]window.Result{}
	for i, item := range items {
		list[item.Offset] = out.Items[i].Result
	}
	return list
}

func TestAckOfTheRestLeavesOutWhatIsNamed(t *testing.T) {
	t.Parallel()
	for _, last := range []bool{false, true} {
		s := newSim(t, queue.Shared, queue.Block)
		s.log.Append(1, 1, 2)
		out := s.pop(3)
		items := []window.Item{nack(0), ackAll}
		if last {
			slices.Reverse(items)
		}

		res := s.settle(out.Epoch, items...)
		s.wait(time.Second)
		again := s.pop(5)

		require.Equal(t, map[window.Offset]window.Result{0: window.Retrying, window.MaxOffset: window.Done}, verdictsOf(items, res))
		require.Equal(t, 3, res.Count)
		require.Equal(t, at(0), offsets(again), "what was nacked comes again")
		require.Equal(t, 1, again.Messages[0].Failures)
	}
}

func TestAckOfTheRestLeavesOutWhatComesBackBehindANack(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1, 1, 2, 2)
	out := s.pop(5)

	res := s.settle(out.Epoch, nack(1), ackAll)
	s.wait(time.Second)
	again := s.pop(5)

	require.Equal(t, 3, res.Items[1].Count, "one before it, two of the other partition")
	require.Equal(t, at(1, 2), offsets(again))
	require.Equal(t, 0, again.Messages[1].Failures)
}

func TestTheRestIsRefusedBesideWhatIsNotHeld(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]window.Item{"nack": nack(2), "reject": reject(2), "ack": ack(2), "nack of a settled one": nack(0), "reject of a settled one": reject(0)} {
		s := newSim(t, queue.Ordered, queue.Block)
		s.log.Append(1, 3, 3, 1)
		s.ackAll(s.popKey(1, 1).Epoch)
		out := s.popKey(1, 1)

		res := s.settle(out.Epoch, wrong, ackAll)
		kept := s.settle(out.Epoch, ack(3))

		require.Equal(t, window.Refused, res.Items[1].Result, name)
		require.Zero(t, res.Count, name)
		require.True(t, res.Refusal, name)
		require.Equal(t, window.Done, kept.Items[0].Result, name)
	}
}

func TestARepeatedAckDoesNotHoldTheRestBack(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 1, 1)
	out := s.pop(3)
	s.settle(out.Epoch, ack(0))

	res := s.settle(out.Epoch, ack(0), ackAll)

	require.Equal(t, []window.Result{window.AlreadySettled, window.Done}, results(res))
	require.Equal(t, 2, res.Count)
}

func TestTheOrderOfTheItemsMeansNothing(t *testing.T) {
	t.Parallel()
	want := map[window.Offset]window.Result{
		0: window.Done, 1: window.Retrying, 2: window.Returned, 3: window.Returned, 4: window.Returned, 5: window.DeadLettered, 6: window.Done,
	}
	items := []window.Item{ack(0), nack(1), nack(2), ack(3), reject(4), reject(5), ack(6)}
	for turn := range 2 * len(items) {
		s := newSim(t, queue.Ordered, queue.Block)
		s.log.Append(1, 1, 1, 1, 1, 2, 2)
		out := s.pop(7)
		order := slices.Concat(items[turn/2:], items[:turn/2])
		if turn%2 == 1 {
			slices.Reverse(order)
		}

		res := s.settle(out.Epoch, order...)
		s.wait(time.Second)
		again := s.pop(9)

		require.Equal(t, want, verdictsOf(order, res))
		require.Equal(t, at(1, 2, 3, 4), offsets(again))
		for i, m := range again.Messages {
			require.Equal(t, map[bool]int{true: 1}[i == 0], m.Failures, "only the first that failed is charged")
		}
	}
}

func TestADeadLetterDoesNotStopItsPartition(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.p.MaxAttempts = 1
	s.reload()
	s.log.Append(1, 1, 1)
	out := s.pop(3)

	res := s.settle(out.Epoch, ack(2), nack(1), nack(0))

	require.Equal(t, []window.Result{window.Done, window.DeadLettered, window.DeadLettered}, results(res))
	require.EqualValues(t, 3, s.v.Low())
}

func TestWhereNothingBlocksEachMessageIsSettledByItself(t *testing.T) {
	t.Parallel()
	for _, p := range []struct {
		mode      queue.Mode
		onFailure queue.OnFailure
	}{{queue.Ordered, queue.Skip}, {queue.Shared, queue.Block}} {
		s := newSim(t, p.mode, p.onFailure)
		s.log.Append(1, 1, 1, 1)
		out := s.pop(4)

		res := s.settle(out.Epoch, nack(2), ack(1), nack(0), ack(3))
		s.wait(time.Second)

		require.Equal(t, []window.Result{window.Retrying, window.Done, window.Retrying, window.Done}, results(res))
		require.Equal(t, at(0, 2), offsets(s.pop(5)))
	}
}

func TestWhatIsSaidTwiceIsAnsweredTwice(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 2, 3)
	out := s.pop(3)

	res := s.settle(out.Epoch, nack(0), ack(1), nack(0), ack(1), nack(2), ack(2))

	require.Equal(t, []window.Result{
		window.Retrying, window.Done, window.Retrying, window.Done, window.AlreadySettled, window.Done,
	}, results(res))
	require.Equal(t, 3, res.Count)
}

func TestALiveLeaseSaysThatItDoesNotHoldAMessage(t *testing.T) {
	t.Parallel()
	s := newSim(t, queue.Ordered, queue.Block)
	s.log.Append(1, 2, 2)
	one, two := s.popKey(1, 1), s.popKey(2, 2)
	s.settle(two.Epoch, nack(2))

	res := s.settle(two.Epoch, ack(0), ack(2))
	s.ackAll(two.Epoch)
	gone := s.settle(two.Epoch, ack(0))

	require.Equal(t, []window.Result{window.NotHeld, window.NotHeld}, results(res), "never there, and came back")
	require.True(t, res.Refusal)
	require.Equal(t, window.NotHeld, res.Result)
	require.Equal(t, window.Stale, gone.Items[0].Result)
	require.Equal(t, window.Done, s.settle(one.Epoch, ack(0)).Items[0].Result)
}
