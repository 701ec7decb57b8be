package catalog

import (
	"time"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/tenant"
)

// InvalidateQueue forgets the queue of that name, its groups with it. An empty tenant means every tenant's queue of that name: a hint may come without
// one. A read that began before is not remembered either.
func (c *Catalog) InvalidateQueue(t tenant.ID, name string) {
	if t != "" {
		c.queues.Invalidate(queueKey{t, name})
		return
	}
	for key := range c.queues.Keys() {
		if key.name == name {
			c.queues.Invalidate(key)
		}
	}
}

// InvalidateOlder forgets q if version, as a flush read it from the queue's shard row, is newer than q. It reports whether q is out of date, and costs
// nothing when it is not.
func (c *Catalog) InvalidateOlder(q *Queue, version int64) bool {
	if version <= q.ConfigVersion {
		return false
	}
	key := queueKey{q.Tenant, q.Name}
	if now, ok := c.queues.GetIfPresent(key); ok && (now == nil || now.ID != q.ID || now.ConfigVersion < version) {
		c.queues.Invalidate(key)
	}
	return true
}

// InvalidateGroup forgets one group: its rows were found gone.
func (c *Catalog) InvalidateGroup(g *Group) {
	key := groupKey{g.QueueID, g.Name}
	if now, ok := c.groups.GetIfPresent(key); ok && now.ID == g.ID {
		c.groups.Invalidate(key)
	}
}

// InvalidateAll forgets everything: the carrier of hints was away, or the database is another one.
func (c *Catalog) InvalidateAll() {
	c.queues.InvalidateAll()
	c.groups.InvalidateAll()
}

// ticking lets the cache read the process's clock. It gives no ticks, so the cache starts no goroutine and drops expired entries while it is used.
type ticking struct{ clk clock.Clock }

func (t ticking) NowNano() int64                    { return t.clk.Now().UnixNano() }
func (ticking) Tick(time.Duration) <-chan time.Time { return nil }
