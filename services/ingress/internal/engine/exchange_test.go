package engine_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/engine"
)

func TestTheOwnHostsDispatcherIsPreferredAndGoneBackTo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.own.auto, b.other.auto = true, true
	where := func() string {
		res, err := b.Do(t.Context(), push("q", "k", "x"))
		require.NoError(t, err)
		return res.GetPush().GetResults()[0].GetMessageId()
	}
	require.Equal(t, "mem:d0", where())

	b.own.stop()
	began := time.Now()
	require.Equal(t, "mem:d1", where())
	require.Less(t, time.Since(began), time.Second)
	b.awaitUsable(t, 1) // both of its streams are known to be gone
	b.own.start()
	b.awaitUsable(t, 2)

	require.Equal(t, "mem:d0", where())
}

func TestAPushThatWasOutWhenItsDispatcherDiedIsNotSentAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.do(t.Context(), push("q", "", "x"))
	b.own.next()

	b.own.stop()

	select {
	case a := <-got:
		require.ErrorIs(t, a.err, engine.ErrOutcomeUnknown)
	case <-b.other.arrived:
		t.Fatal("sent again")
	}
	require.Empty(t, b.other.arrived)
	b.own.start()
}

func TestAPushWithAKeyIsSentAgainOnceElsewhere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.do(t.Context(), push("q", "k", "x"))
	first := b.own.next()
	b.own.stop()

	second := b.other.next()
	second.answer(pushed("second"))

	o := <-got
	require.False(t, first.op.GetPush().GetResent())
	require.True(t, second.op.GetPush().GetResent(), "the queue may keep no keys")
	require.NoError(t, o.err)
	require.Equal(t, "second", o.res.GetPush().GetResults()[0].GetMessageId())

	got = b.do(t.Context(), push("q", "k", "x"))
	b.other.next()
	b.awaitUsable(t, 1)
	b.own.start()
	b.awaitUsable(t, 2)
	b.other.stop()
	b.own.next()
	b.own.stop()
	require.ErrorIs(t, (<-got).err, engine.ErrOutcomeUnknown, "lost twice")
	b.own.start()
	b.other.start()
}

func TestAParkedPopMovesWithTheRestOfItsWait(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.do(t.Context(), pop())
	first := b.own.next().op.GetPop().GetWait().AsDuration()

	b.own.stop()

	moved := b.other.next()
	require.Less(t, moved.op.GetPop().GetWait().AsDuration(), first)
	require.Greater(t, moved.op.GetPop().GetWait().AsDuration(), 50*time.Second)
	moved.answer(popped("l"))
	require.Equal(t, "l", (<-got).res.GetPop().GetLease())
	b.own.start()
}

func TestAPopSentAwayByADrainingDispatcherMoves(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.do(t.Context(), pop())
	parked := b.own.next()
	parked.drain()
	parked.answer(&dispatcherv1.Result{Result: &dispatcherv1.Result_Pop{Pop: &queuev1.PopResponse{Draining: true}}})

	b.other.next().answer(popped("l"))

	require.Equal(t, "l", (<-got).res.GetPop().GetLease())
	next := b.do(t.Context(), push("q", "", "x"))
	b.other.next().answer(pushed("m"))
	require.NoError(t, (<-next).err, "new operations go elsewhere at once")
}

func TestALeavingDispatcherFinishesWhatItHasAndGetsNothingNew(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.do(t.Context(), push("q", "", "x"))
	inFlight := b.own.next()

	b.SetTargets([]engine.Target{{Addr: "mem:d0", Own: true, Leaving: true}, {Addr: "mem:d1"}})
	b.awaitUsable(t, 1)
	next := b.do(t.Context(), push("another", "", "y")) // one of the same queue would wait for the one that is out
	b.other.next().answer(pushed("other"))
	require.NoError(t, (<-next).err)
	inFlight.answer(pushed("own"))

	o := <-got
	require.NoError(t, o.err)
	require.Equal(t, "own", o.res.GetPush().GetResults()[0].GetMessageId())
	b.SetTargets([]engine.Target{{Addr: "mem:d0", Own: true}, {Addr: "mem:d1"}})
	b.awaitUsable(t, 2)
}

func TestADispatcherThatIsGoneFromTheSetIsGivenUpAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.do(t.Context(), pop())
	b.own.next() // and never answers: it hangs

	b.SetTargets([]engine.Target{{Addr: "mem:d1"}})

	b.other.next().answer(popped("l"))
	require.Equal(t, "l", (<-got).res.GetPop().GetLease())
}

func TestAnAbandonedPopIsWithdrawnAndWhatItLeasedIsGivenBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	got := b.do(ctx, pop())
	parked := b.own.next()

	cancel()

	require.ErrorIs(t, (<-got).err, context.Canceled)
	require.Equal(t, parked.op.GetId(), b.own.next().op.GetCancel())
	parked.answer(popped("late"))
	release := b.own.next()
	require.Equal(t, "late", release.op.GetRelease().GetLease())
	require.Equal(t, "t", release.op.GetTenant())
	release.answer(&dispatcherv1.Result{Result: &dispatcherv1.Result_Release{Release: &queuev1.ReleaseResponse{Released: 1}}})
}

func TestWithoutADispatcherThereIsAClearErrorInTime(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *engine.Config) { c.Patience = 50 * time.Millisecond })
	b.SetTargets(nil)
	b.awaitUsable(t, 0)

	_, err := b.Do(t.Context(), push("q", "", "x"))

	require.ErrorIs(t, err, engine.ErrNoDispatcher)
	err = b.Control(t.Context(), "t", "q", true, nil)
	require.ErrorIs(t, err, engine.ErrNoDispatcher)
}

func TestADispatcherThatComesInTimeIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.other.auto = true
	b.SetTargets(nil)
	b.awaitUsable(t, 0)
	got := b.do(t.Context(), push("q", "", "x"))

	b.SetTargets([]engine.Target{{Addr: "mem:d1"}})

	require.NoError(t, (<-got).err)
}

func TestWhatIsInFlightIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *engine.Config) { c.MaxOps, c.MaxBytes = 2, 10_000 })
	first, second := b.do(t.Context(), pop()), b.do(t.Context(), pop())
	one, two := b.own.next(), b.own.next()
	_, err := b.Do(t.Context(), pop())
	require.ErrorIs(t, err, engine.ErrOverloaded)

	one.answer(popped("a"))
	two.answer(popped("b"))
	<-first
	<-second

	_, err = b.Do(t.Context(), push("q", "", string(make([]byte, 10_001))))
	require.ErrorIs(t, err, engine.ErrOverloaded)
}

func TestPushesOfAQueueArriveInTheOrderOfTheirSubmission(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *engine.Config) { c.MaxOps = 10_000 })
	b.own.auto = true
	const n = 3000
	var done sync.WaitGroup
	for i := range n {
		done.Add(1)
		b.Go(push("q", "", strconv.Itoa(i)), func(*dispatcherv1.Result, error) { done.Done() })
	}
	done.Wait()
	for i := range n {
		require.Equal(t, strconv.Itoa(i), string(b.own.next().op.GetPush().GetItems()[0].GetPayload()))
	}
}

func TestPushesKeepTheirOrderWhenTheOwnDispatcherComesBack(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *engine.Config) { c.MaxOps = 100_000 })
	b.own.stop()
	b.awaitUsable(t, 1)
	b.own.auto = true
	var sent int
	var done sync.WaitGroup
	send := func() {
		done.Add(1)
		b.Go(push("q", "", strconv.Itoa(sent)), func(*dispatcherv1.Result, error) { done.Done() })
		sent++
	}
	for range 5 {
		send()
	}
	first := make([]arrival, 5)
	for i := range first {
		first[i] = b.other.next()
	}

	b.own.start()
	b.awaitUsable(t, 2)
	for range 5 {
		send()
	}
	require.Empty(t, b.own.arrived, "those behind wait for those that are out")
	require.Empty(t, b.other.arrived)
	for _, a := range first {
		a.answer(pushed("other"))
	}

	done.Wait()
	for i := range 5 {
		require.Equal(t, strconv.Itoa(5+i), string(b.own.next().op.GetPush().GetItems()[0].GetPayload()))
	}
}

func TestEveryOperationEndsExactlyOnceWhateverDies(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *engine.Config) { c.MaxOps = 100_000 })
	b.own.auto, b.other.auto = true, true
	var mu sync.Mutex
	ends := map[int]int{}
	var done sync.WaitGroup
	for round := range 10 {
		for i := range 200 {
			done.Add(1)
			b.Go(push("q"+strconv.Itoa(i%7), "k", "x"), func(*dispatcherv1.Result, error) {
				mu.Lock()
				ends[round*200+i]++
				mu.Unlock()
				done.Done()
			})
		}
		d := b.own
		if round%2 == 1 {
			d = b.other
		}
		d.stop()
		d.start()
	}
	done.Wait()
	require.Len(t, ends, 2000)
	for _, n := range ends {
		require.Equal(t, 1, n)
	}
}

func TestStoppingEndsWhatIsInFlight(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.do(t.Context(), push("q", "", "x"))
	b.own.next()

	b.stop()

	require.NoError(t, <-b.ended)
	require.Error(t, (<-got).err)
	_, err := b.Do(t.Context(), push("q", "", "x"))
	require.ErrorIs(t, err, engine.ErrNoDispatcher)
}
