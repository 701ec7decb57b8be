package window_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/domain/window/windowtest"
)

// sim is one dispatcher on one group-shard.
type sim struct {
	t   testing.TB
	log windowtest.Log
	mem *windowtest.Mem
	v   *window.View
	p   window.Policy
}

func newSim(t testing.TB, mode queue.Mode, onFailure queue.OnFailure) *sim {
	t.Helper()
	s := &sim{t: t, mem: windowtest.NewMem(1, 0), p: policy(mode, onFailure)}
	s.reload()
	return s
}

func (s *sim) reload() {
	s.t.Helper()
	rows, err := s.mem.Read()
	require.NoError(s.t, err)
	s.v, err = window.Load(rows, s.p)
	require.NoError(s.t, err)
}

// do plans, applies and commits.
func (s *sim) do(requests ...window.Request) []window.Outcome {
	s.t.Helper()
	change, outs := s.v.Plan(s.mem.Now(), half, requests)
	if !change.Empty() {
		stamp, err := s.mem.Apply(change)
		require.NoError(s.t, err)
		s.v.Commit(change, stamp)
	}
	return outs
}

func (s *sim) pop(n int) window.Outcome {
	s.t.Helper()
	return s.ask(&window.Pop{MaxMessages: n, Lease: 30 * time.Second})
}

func (s *sim) popKey(hash uint64, n int) window.Outcome {
	s.t.Helper()
	return s.ask(&window.Pop{MaxMessages: n, Lease: 30 * time.Second, Named: true, Hash: hash})
}

// ask supplies directories and pops, again where the outcome says so.
func (s *sim) ask(p *window.Pop) window.Outcome {
	s.t.Helper()
	for {
		s.v.Advance(s.mem.Now())
		s.log.Supply(s.v, p)
		if out := s.do(p)[0]; !out.Again {
			return out
		}
	}
}

func (s *sim) settle(e window.Epoch, items ...window.Item) window.Outcome {
	s.t.Helper()
	return s.do(&window.Settle{Epoch: e, Items: items})[0]
}

func (s *sim) ackAll(e window.Epoch) { s.settle(e, ackAll) }

func (s *sim) wait(d time.Duration) { s.mem.Advance(d) }

var ackAll = window.Item{Offset: window.MaxOffset, Through: true, Verdict: window.Ack} //nolint:gochecknoglobals // a constant

func ack(off window.Offset) window.Item { return window.Item{Offset: off, Verdict: window.Ack} }

func nack(off window.Offset) window.Item {
	return window.Item{Offset: off, Verdict: window.Nack, HasDelay: true, Delay: time.Second, Reason: "no"}
}

func offsets(out window.Outcome) []window.Offset {
	list := []window.Offset{}
	for _, m := range out.Messages {
		list = append(list, m.Offset)
	}
	return list
}

func at(offs ...window.Offset) []window.Offset { return append([]window.Offset{}, offs...) }

// ofKeyOne is n messages of the key 1.
func ofKeyOne(n int) []uint64 {
	list := make([]uint64, n)
	for i := range list {
		list[i] = 1
	}
	return list
}
