package engine

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// retryAfter is what a caller that is refused for lack of room is told; a commit takes a few milliseconds, so room comes soon.
const retryAfter = 100 * time.Millisecond

// budget bounds what waits for a commit. What is taken MUST be given back exactly once.
type budget struct {
	what       string
	limit      int64
	used       atomic.Int64
	gauge      prometheus.Gauge
	retryAfter time.Duration
}

func newBudget(what string, limit int64, gauge prometheus.Gauge) *budget {
	return &budget{what: what, limit: limit, gauge: gauge, retryAfter: retryAfter}
}

// take reserves n, or returns *OverloadedError. Something larger than the whole budget passes when nothing else is reserved.
func (b *budget) take(n int64) error {
	if used := b.used.Add(n); used > b.limit && used != n {
		b.used.Add(-n)
		return &OverloadedError{What: b.what, RetryAfter: b.retryAfter}
	}
	b.gauge.Add(float64(n))
	return nil
}

func (b *budget) give(n int64) {
	b.used.Add(-n)
	b.gauge.Sub(float64(n))
}
