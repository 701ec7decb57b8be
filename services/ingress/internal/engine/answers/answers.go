// Package answers bounds the bytes of answers that are in memory because their clients have not read them yet.
//
// Who has an answer to give takes room for it when it comes, and frees it when the answer has left. FreeBytes of each count for nothing, as little as a
// connection costs anyway: however much clients leave unread, small answers have room. Room is not reserved for what may come: pops wait a minute for
// messages that are mostly small, and room for the largest answer to each would let a few dozen of them wait. So an answer may come that has no room;
// then it MUST be dropped, and what it leased given back. Whoever wants it all the same waits in turn for the room that it now knows to need.
package answers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"postrider.dev/pkg/obs"
)

// FreeBytes of each answer count for nothing.
const FreeBytes = 16 << 10

// Budget is the room of one process. Use New.
type Budget struct {
	limit   int64
	room    *semaphore.Weighted // in turn: who waits is not overtaken
	used    atomic.Int64
	waiting atomic.Int64
	metrics metrics
}

type metrics struct {
	used    prometheus.Gauge
	dropped prometheus.Counter
	cut     prometheus.Counter
}

// New returns a budget of that many bytes. An answer larger than all of it counts as all of it.
func New(limit int64, reg prometheus.Registerer) (*Budget, error) {
	m, err := newMetrics(reg)
	if err != nil {
		return nil, err
	}
	return &Budget{limit: limit, room: semaphore.NewWeighted(limit), metrics: m}, nil
}

func newMetrics(reg prometheus.Registerer) (m metrics, err error) {
	var errs [3]error
	m.used, errs[0] = obs.Register[prometheus.Gauge](reg, prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: obs.Namespace, Subsystem: "ingress", Name: "answer_bytes", Help: "Memory of answers with messages or dead letters that clients have not read yet.",
	}))
	m.dropped, errs[1] = obs.Register[prometheus.Counter](reg, prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: obs.Namespace, Subsystem: "ingress", Name: "answers_dropped_total", Help: "Answers with messages or dead letters dropped because there was no room for them; what a pop had leased came back.",
	}))
	m.cut, errs[2] = obs.Register[prometheus.Counter](reg, prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: obs.Namespace, Subsystem: "ingress", Name: "answers_cut_off_total", Help: "Answers cut off because their clients did not read them in time.",
	}))
	return m, errors.Join(errs[:]...)
}

// Free returns how much room there is now; none while somebody waits for some.
func (b *Budget) Free() int64 {
	if b.waiting.Load() > 0 {
		return 0
	}
	return max(b.limit-b.used.Load(), 0)
}

// Dropped counts an answer that was given back for lack of room.
func (b *Budget) Dropped() { b.metrics.dropped.Inc() }

// CutOff counts an answer whose client did not read it in time.
func (b *Budget) CutOff() { b.metrics.cut.Inc() }

func (b *Budget) counted(bytes int64) int64 { return min(max(bytes-FreeBytes, 0), b.limit) }

// TryTake returns room for an answer of that many bytes, nil if there is none now.
func (b *Budget) TryTake(bytes int64) *Hold {
	n := b.counted(bytes)
	if n > 0 && !b.room.TryAcquire(n) {
		return nil
	}
	return b.hold(n)
}

// Take waits in turn for room for an answer of that many bytes, until ctx ends.
func (b *Budget) Take(ctx context.Context, bytes int64) (*Hold, error) {
	n := b.counted(bytes)
	b.waiting.Add(1)
	err := b.room.Acquire(ctx, n)
	b.waiting.Add(-1)
	if err != nil {
		return nil, fmt.Errorf("wait for room for an answer: %w", err)
	}
	return b.hold(n), nil
}

func (b *Budget) hold(n int64) *Hold {
	b.changed(n)
	return &Hold{budget: b, n: n}
}

func (b *Budget) changed(by int64) {
	b.used.Add(by)
	b.metrics.used.Add(float64(by))
}

// Hold is the room of one answer. Release MUST be called in the end; a nil Hold has no room and may be released.
type Hold struct {
	budget *Budget

	mu       sync.Mutex // guards the rest
	n        int64
	released bool
}

// Counted returns how many bytes it holds.
func (h *Hold) Counted() int64 {
	if h == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

// Resize makes it room for an answer of that many bytes. False: it would grow, and there is no room; it is as it was then.
func (h *Hold) Resize(bytes int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return false
	}
	n := h.budget.counted(bytes)
	switch more := n - h.n; {
	case more > 0 && !h.budget.room.TryAcquire(more):
		return false
	case more < 0:
		h.budget.room.Release(-more)
	}
	h.budget.changed(n - h.n)
	h.n = n
	return true
}

// Release frees the room. Further calls do nothing.
func (h *Hold) Release() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.released {
		return
	}
	h.released = true
	h.budget.room.Release(h.n)
	h.budget.changed(-h.n)
	h.n = 0
}
