package pgtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"postrider.dev/pkg/pg"
)

// FrozenClock is a schema's now(), under a test's control.
type FrozenClock struct {
	t      testing.TB
	db     *pg.DB
	schema string
	now    time.Time
}

// FreezeNow replaces <schema>.now() in the test's own database by one that stands at t0 until Set or Advance. The instant is rounded down to
// microseconds, as PostgreSQL keeps it.
func FreezeNow(t testing.TB, db *pg.DB, schema string, t0 time.Time) *FrozenClock {
	t.Helper()
	c := &FrozenClock{t: t, db: db, schema: schema}
	c.Set(t0)
	return c
}

// Now is the instant the schema's clock stands at.
func (c *FrozenClock) Now() time.Time { return c.now }

// Advance moves the clock by d.
func (c *FrozenClock) Advance(d time.Duration) {
	c.t.Helper()
	c.Set(c.now.Add(d))
}

// Set moves the clock to an instant. Statements that start afterwards see it.
func (c *FrozenClock) Set(to time.Time) {
	c.t.Helper()
	c.now = to.UTC().Truncate(time.Microsecond)
	sql := fmt.Sprintf("CREATE OR REPLACE FUNCTION %s.now() RETURNS timestamptz LANGUAGE sql STABLE AS $$SELECT '%s'::timestamptz$$",
		c.schema, c.now.Format("2006-01-02T15:04:05.999999Z07:00"))
	if _, err := c.db.Exec(context.WithoutCancel(c.t.Context()), sql); err != nil {
		c.t.Fatalf("pgtest: freeze %s.now(): %v", c.schema, err)
	}
}
