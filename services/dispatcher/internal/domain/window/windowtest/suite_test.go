package windowtest_test

import (
	"testing"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/domain/window/windowtest"
)

// ticking is a Mem whose clock moves on by itself.
type ticking struct{ *windowtest.Mem }

func (s ticking) Apply(c window.Change) (window.Stamp, error) {
	s.Advance(700 * time.Microsecond)
	return s.Mem.Apply(c)
}

func TestMemPassesTheSuiteOfStores(t *testing.T) {
	t.Parallel()
	windowtest.Run(t, func(*testing.T) (windowtest.Store, window.GroupShardID) { return ticking{windowtest.NewMem(3, 0)}, 3 })
}

func TestCheckerAcceptsAWellFormedRecordByHand(t *testing.T) {
	t.Parallel()
	s := tell(t)
	history, r := s.after("pop one of b", 0)

	history = append(history, s.pop(r, 1, 5))

	if found := windowtest.NewChecker(s.policy, 0, s.log.Hash).Replay(history); len(found) > 0 {
		t.Fatal(found)
	}
}
