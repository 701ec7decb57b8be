package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/ingress/internal/engine"
)

func TestADispatcherThatHangsIsGivenUpUntilItAnswersAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *engine.Config) { c.HungAfter = 200 * time.Millisecond })
	b.other.auto = true
	keyed := b.do(t.Context(), push("keyed", "k", "x"))
	plain := b.do(t.Context(), push("plain", "", "x"))
	waiting := b.do(t.Context(), pop())
	for range 3 {
		b.own.next()
	}

	b.own.hang()

	o := <-keyed
	require.NoError(t, o.err)
	require.Equal(t, "mem:d1", o.res.GetPush().GetResults()[0].GetMessageId())
	require.ErrorIs(t, (<-plain).err, engine.ErrOutcomeUnknown)
	for { // the pop and the push, in any order
		a := b.other.next()
		if a.op.GetPop() != nil {
			a.answer(popped("l"))
			break
		}
	}
	require.Equal(t, "l", (<-waiting).res.GetPop().GetLease())
	b.awaitUsable(t, 1)
	b.own.unhang()
	b.awaitUsable(t, 2)
}

func TestADispatcherThatIsSlowAndAnswersIsNotGivenUp(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *engine.Config) { c.HungAfter = 500 * time.Millisecond })
	got := b.do(t.Context(), push("q", "", "x"))
	a := b.own.next()

	b.own.probed(6)
	a.answer(pushed("m"))

	require.NoError(t, (<-got).err)
}
