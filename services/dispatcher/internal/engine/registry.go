package engine

import (
	"container/list"
	"context"
	"errors"
	"maps"
	"slices"

	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

// group returns the group's state here, made if need be, under the configuration given or a newer one.
func (e *Engine) group(q *catalog.Queue, row *catalog.Group) *group {
	e.mu.Lock()
	defer e.mu.Unlock()
	g := e.groups[row.ID]
	if g == nil {
		g = &group{e: e, id: row.ID, name: row.Name, layout: q.Layout(), named: map[uint64]*list.List{}}
		for i, id := range row.Shards {
			s := &gshard{id: id, index: i, grp: g, shard: e.shardOf(q.Shards[i]), lane: e.workLanes[q.ID%lanes], closed: e.ended}
			s.shard.join(s)
			g.shards = append(g.shards, s)
			e.byShard[id] = s
		}
		e.groups[row.ID] = g
	}
	g.adopt(q, row)
	return g
}

// shardOf needs e.mu.
func (e *Engine) shardOf(id message.ShardID) *shard {
	s := e.shards[id]
	if s == nil {
		s = &shard{id: id}
		s.raise(e.heads[id])
		e.shards[id] = s
	}
	return s
}

// of returns the group-shard on a shard, nil if there is none.
func (g *group) of(id message.ShardID) *gshard {
	for _, s := range g.shards {
		if s.shard.id == id {
			return s
		}
	}
	return nil
}

// groupShard finds a group-shard of the queue by the id in a token. One that is of no group of this queue means that the lease is gone.
func (e *Engine) groupShard(ctx context.Context, q *catalog.Queue, id window.GroupShardID) (*gshard, error) {
	e.mu.Lock()
	s := e.byShard[id]
	e.mu.Unlock()
	if s != nil {
		if s.grp.rows.Load().queue.ID != q.ID {
			return nil, ErrStaleEpoch
		}
		return s, nil
	}
	owner, err := e.ownerOf(ctx, id)
	if errors.Is(err, store.ErrGroupNotFound) || err == nil && owner.Queue.ID != q.ID {
		return nil, ErrStaleEpoch
	}
	if err != nil {
		return nil, e.dbError(err)
	}
	g := e.adopt(owner)
	if s = g.byID(id); s == nil {
		return nil, ErrStaleEpoch
	}
	return s, nil
}

func (g *group) byID(id window.GroupShardID) *gshard {
	for _, s := range g.shards {
		if s.id == id {
			return s
		}
	}
	return nil
}

// adopt returns the state of a group that was read from the database outside the catalog.
func (e *Engine) adopt(owner store.OwnedGroup) *group {
	return e.group(&catalog.Queue{Queue: owner.Queue}, &catalog.Group{Group: owner.Group})
}

// drop forgets a group that was found deleted.
func (e *Engine) drop(g *group) {
	rows := g.rows.Load()
	e.catalog.InvalidateGroup(rows.group)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.remove(g)
}

// remove needs e.mu.
func (e *Engine) remove(g *group) {
	if e.groups[g.id] != g {
		return
	}
	delete(e.groups, g.id)
	for _, s := range g.shards {
		delete(e.byShard, s.id)
		s.shard.leave(s)
		if s.shard.unused() {
			delete(e.shards, s.shard.id)
		}
	}
}

// sweep lets go of groups that nobody uses and that have no view any more.
func (e *Engine) sweep() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, g := range e.groups {
		if !g.hasParked() && g.unused() {
			e.remove(g)
		}
	}
}

// unused says that nothing of the group is in memory or on its way.
func (g *group) unused() bool {
	for _, s := range g.shards {
		s.mu.Lock()
		used := s.state != idle || len(s.pending) > 0 || s.grp.e.views.has(s)
		s.mu.Unlock()
		if used {
			return false
		}
	}
	return true
}

func (v *views) has(g *gshard) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.place[g] != nil
}

func (s *shard) unused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.users)+len(s.tails) == 0
}

// maxHeads bounds the heads that are remembered for pushes; forgetting them costs the database a longer look for the row.
const maxHeads = 1 << 16

// headOf returns a head that the shard is known to have reached, 0 if nothing is known.
func (e *Engine) headOf(id message.ShardID) message.Offset {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heads[id]
}

// advanced notes that a shard reached a head, and wakes who waits for that.
func (e *Engine) advanced(id message.ShardID, head message.Offset) {
	e.mu.Lock()
	if _, known := e.heads[id]; !known && len(e.heads) >= maxHeads {
		clear(e.heads)
	}
	e.heads[id] = max(e.heads[id], head)
	s := e.shards[id]
	e.mu.Unlock()
	if s != nil && s.raise(head) {
		s.wake()
	}
}

// HintMessages says that another dispatcher appended to a queue: look, if anybody waits on it. An empty tenant means any.
func (e *Engine) HintMessages(t tenant.ID, queueName string) {
	e.eachOf(t, queueName, e.poller.hint)
}

// HintQueue says that what is cached of the queue may be out of date.
func (e *Engine) HintQueue(t tenant.ID, queueName string) {
	e.catalog.InvalidateQueue(t, queueName)
	e.eachOf(t, queueName, e.poller.hint)
}

// HintEverything says that hints may have been missed.
func (e *Engine) HintEverything() {
	e.catalog.InvalidateAll()
	e.poller.each(e.poller.hint)
}

// QueueChanged is told by control verbs of this dispatcher, after their commit, that a queue or its groups changed.
func (e *Engine) QueueChanged(t tenant.ID, queueName string, deleted bool) {
	e.HintQueue(t, queueName)
	e.hints.QueueChanged(t, queueName, deleted)
}

// Appended is told by control verbs of this dispatcher, after their commit, that messages were appended outside the engine's own flushes.
func (e *Engine) Appended(t tenant.ID, queueName string, heads map[message.ShardID]message.Offset) {
	for _, shard := range slices.Backward(slices.Sorted(maps.Keys(heads))) { // of a queue the highest lane first
		e.advanced(shard, heads[shard])
	}
	e.hints.MessagesAvailable(t, queueName)
}

// eachOf calls fn for what is waited for of a queue.
func (e *Engine) eachOf(t tenant.ID, name string, fn func(watched)) {
	e.poller.each(func(w watched) {
		if q := w.belongs(); q.Name == name && (t == "" || q.Tenant == t) {
			fn(w)
		}
	})
}
