package peer

import (
	"sync"
	"time"

	"postrider.dev/pkg/clock"
)

// tellEvery is the least time between two log lines about failed handshakes of one reason: who dials and fails all day fills no disk. Counters count each.
const tellEvery = 10 * time.Second

// quiet decides which failures are written down.
type quiet struct {
	clk clock.Clock

	mu   sync.Mutex // guards told
	told map[string]*untold
}

// untold is what was not said about one reason.
type untold struct {
	since    time.Time
	failures int
}

func newQuiet(clk clock.Clock) *quiet { return &quiet{clk: clk, told: map[string]*untold{}} }

// failed notes a failure. ok says that it is to be told of, together with those that were not: failures is how many that is.
func (q *quiet) failed(reason string) (failures int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.clk.Now()
	s := q.told[reason]
	if s == nil { // reasons are few: see reasonOf
		s = &untold{}
		q.told[reason] = s
	}
	s.failures++
	if !s.since.IsZero() && now.Sub(s.since) < tellEvery {
		return 0, false
	}
	failures, s.failures, s.since = s.failures, 0, now
	return failures, true
}
