package engine

import (
	"sync"
	"time"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// dbClock guesses the database's time from this process's clock. It decides when to try and nothing else: every change carries NotBefore, and the
// database has the last word.
//
// Each stamp of a commit and each poll is a reading taken somewhere between the request and its answer, so the true offset lies in
// [stamp - received, stamp - sent]. The guess errs to the late side: trying too early costs a statement for nothing.
type dbClock struct {
	clk clock.Clock

	mu     sync.Mutex // guards the rest
	offset time.Duration
	known  bool
	width  time.Duration // of the interval the offset came from; grows with age, because clocks drift
	at     time.Time
}

// observe learns from an instant of the database that was read after sent and before now.
func (c *dbClock) observe(stamp window.DBTime, sent time.Time) {
	if stamp == 0 {
		return
	}
	now := c.clk.Now()
	width := now.Sub(sent)
	c.mu.Lock()
	defer c.mu.Unlock()
	aged := c.width + now.Sub(c.at)/1000
	if c.known && width > aged {
		return
	}
	c.offset, c.width, c.at, c.known = stamp.Time().Sub(now.Round(0)), width, now, true
}

// now returns an instant that the database's clock has most probably passed.
func (c *dbClock) now() window.DBTime {
	c.mu.Lock()
	defer c.mu.Unlock()
	return window.DBTimeOf(c.clk.Now().Round(0).Add(c.offset))
}

// until returns how long this process should wait for the database's clock to pass t.
func (c *dbClock) until(t window.DBTime) time.Duration {
	return time.Duration(t-c.now()) * time.Microsecond
}
