package catalog

import (
	"sync"
	"time"

	"postrider.dev/pkg/clock"
)

const (
	rateSeconds = 10     // the window of a rate
	rateQueues  = 65_536 // queues whose rate is kept; when as many were pushed to within the window, others show no rate
)

// Rates counts what this dispatcher appends to each queue and answers the mean over the last ten full seconds. Queues it did not append to have rate
// zero, whatever other dispatchers did. It is safe for concurrent use and bounded.
type Rates struct {
	clk   clock.Clock
	start time.Time

	mu     sync.Mutex // guards the rest
	queues map[int64]*window
	swept  int64 // the second of the last look for idle queues
}

// window counts by second: counts[s % len] belongs to second s, for the seconds (last-len, last].
type window struct {
	last   int64
	counts [rateSeconds + 1]int32
}

// NewRates returns Rates that have counted nothing.
func NewRates(clk clock.Clock) *Rates {
	return &Rates{clk: clk, start: clk.Now(), queues: make(map[int64]*window)}
}

// Add counts n messages appended to the queue now. It is called once a flush.
func (r *Rates) Add(queueID int64, n int) {
	now := r.second()
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.queues[queueID]
	if w == nil {
		if len(r.queues) >= rateQueues && !r.sweep(now) {
			return
		}
		w = &window{last: now}
		r.queues[queueID] = w
	}
	w.advance(now)
	w.counts[w.last%int64(len(w.counts))] += int32(n)
}

// PerSecond returns the messages per second over the last ten full seconds.
func (r *Rates) PerSecond(queueID int64) float64 {
	now := r.second()
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.queues[queueID]
	if w == nil {
		return 0
	}
	w.advance(now)
	var sum int64
	for i, n := range w.counts {
		if int64(i) != w.last%int64(len(w.counts)) { // the running second is not full
			sum += int64(n)
		}
	}
	return float64(sum) / float64(min(rateSeconds, max(now, 1)))
}

func (r *Rates) second() int64 { return int64(r.clk.Since(r.start) / time.Second) }

// sweep forgets queues whose window is empty, at most once a second, and reports whether there is room. It needs r.mu.
func (r *Rates) sweep(now int64) bool {
	if r.swept != now {
		r.swept = now
		for id, w := range r.queues {
			if w.advance(now); w.counts == [rateSeconds + 1]int32{} {
				delete(r.queues, id)
			}
		}
	}
	return len(r.queues) < rateQueues
}

// advance clears the seconds that passed since the last call.
func (w *window) advance(now int64) {
	for steps := 0; w.last < now; steps++ {
		if steps == len(w.counts) {
			w.last = now
			return
		}
		w.last++
		w.counts[w.last%int64(len(w.counts))] = 0
	}
}
