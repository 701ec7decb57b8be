package store_test

import (
	"fmt"
	"time"
)

// frozenClock is dispatcher.clock() and dispatcher.now() under a test's control.
type frozenClock struct {
	b  *bench
	at time.Time
}

// freezeClock makes the database's time of this test stand still at an instant.
func freezeClock(b *bench, at time.Time) *frozenClock {
	b.t.Helper()
	c := &frozenClock{b: b, at: at}
	c.advance(0)
	return c
}

func (c *frozenClock) advance(d time.Duration) {
	c.b.t.Helper()
	c.at = c.at.Add(d).UTC()
	text := c.at.Format("2006-01-02T15:04:05.999999Z07:00")
	c.b.exec(fmt.Sprintf("CREATE OR REPLACE FUNCTION dispatcher.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$SELECT '%s'::timestamptz$$", text))
	c.b.exec(fmt.Sprintf("CREATE OR REPLACE FUNCTION dispatcher.now() RETURNS timestamptz LANGUAGE sql STABLE AS $$SELECT '%s'::timestamptz$$", text))
}
