package engine

import (
	"context"
	"slices"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

// A group is watched by the poller while pops wait on it. One of several shards is so also while it is in use: its pops find enough on the shards of which
// something is known here, and would never look for what other dispatchers append to the rest, such as a higher lane.

// useFor is how long a group counts as in use after a pop, and useAgain how often a pop says so.
const (
	useFor   = 5 * time.Second
	useAgain = time.Second
)

// used notes a pop. The first one after a while has the group looked at now.
func (g *group) used() {
	if len(g.shards) == 1 {
		return
	}
	now := g.e.clk.Now().UnixNano()
	if idle := time.Duration(now - g.usedAt.Load()); idle >= useAgain {
		g.usedAt.Store(now)
		g.e.poller.watch(g, idle >= useFor)
	}
}

func (g *group) inUse() bool {
	return len(g.shards) > 1 && time.Duration(g.e.clk.Now().UnixNano()-g.usedAt.Load()) < useFor
}

func (g *group) belongs() *catalog.Queue { return g.rows.Load().queue }

func (g *group) pace() *pollState { return &g.poll }

func (g *group) wanted() bool { return g.hasParked() || g.inUse() }

func (g *group) known(q *question) {
	for _, s := range g.shards {
		q.shard(s.shard)
		q.versions[s.id] = window.Version(s.version.Load())
	}
}

func (g *group) found(q *question, heads map[message.ShardID]store.Head, versions map[window.GroupShardID]window.Version) (news bool) {
	row := g.belongs()
	for _, s := range slices.Backward(g.shards) { // the highest lane first: who waits is to get that
		if g.e.catalog.InvalidateOlder(row, heads[s.shard.id].ConfigVersion) {
			g.reconfigure()
		}
		fresh := q.news(s.shard, heads)
		version, there := versions[s.id]
		if s.suspect(version, there) || fresh {
			news = true
			s.wake()
		}
	}
	return news
}

// reconfigure reads the queue's options anew for the pops that wait, and has them planned again: what they wait for may be there by the new ones. It does
// not wait for that; where it fails, the next poll finds the same.
func (g *group) reconfigure() {
	if g.reading.Swap(true) {
		return
	}
	begun := g.e.background(func() {
		defer g.reading.Store(false)
		ctx, cancel := context.WithTimeout(g.e.base, g.e.cfg.StatementTimeout)
		defer cancel()
		old := g.rows.Load()
		q, err := g.e.queue(ctx, old.queue.Tenant, old.queue.Name, false)
		if err != nil || q.ID != old.queue.ID {
			return
		}
		g.adopt(q, old.group)
		for _, s := range g.shards {
			s.wake()
		}
	})
	if !begun {
		g.reading.Store(false)
	}
}
