package engine

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/engine/segcache"
	"postrider.dev/services/dispatcher/internal/store"
)

// maxMoves is how many deleted queues in a row a push meets under one name before it is refused.
const maxMoves = 3

// errLeftOut says that a shard took nothing although it was there.
var errLeftOut = errors.New("the shard was left out of the flush")

// landed spreads the news of a commit and has its pushes answered. Those that are not in it go again, or move.
func (l *flushLane) landed(ctx context.Context, ps []*push, parts []*part, results []store.Appended, sent time.Time) {
	l.e.metrics.flushes.Inc()
	messages := 0
	for i, c := range parts {
		if r := results[i]; r.Status == store.StatusAppended {
			messages += len(c.frames)
			l.keep(c, r, sent)
		}
		if fateOf(results[i].Status) == isDone {
			l.later(c)
		}
	}
	l.e.metrics.flushMessages.Observe(float64(messages))
	l.e.metrics.pushed.Add(float64(messages))
	l.announce(parts, results)
	done, left, lost, full := l.sortOut(ps, parts, results)
	l.answers <- flushed{pushes: done, parts: parts, results: results}
	l.again = append(l.again, l.expire(left, errLeftOut)...)
	l.move(ctx, lost)
	if len(full) > 0 { // those that fit go at once: more for the full shard may come with the next batch
		l.try(ctx, l.revalidate(ctx, l.squeeze(full, parts, results)), l.flushPlain)
	}
}

// fate is what became of the items of a push, added up over its shards.
type fate uint8

const (
	isDone fate = 1 << iota // in the log, or judged not to go there
	isLeft                  // not written, and may go again
	isLost                  // not written: the queue was deleted
	isFull                  // not written, because there was no room for all of the part
)

func fateOf(s store.Status) fate {
	switch s {
	case store.StatusSealed, store.StatusGone:
		return isLost
	case store.StatusLeftOut:
		return isLeft
	case store.StatusFull:
		return isFull
	case store.StatusAppended, store.StatusNothing:
	}
	return isDone
}

// sortOut tells which pushes are done, which are left over and which lost their queue. One that is both done and left over is divided. (It is not both
// done and lost: a queue's shards are sealed together. Nor both done and full: a queue's shards are left out together.)
func (l *flushLane) sortOut(ps []*push, parts []*part, results []store.Appended) (done, left, lost, full []*push) {
	crowded := map[int64]bool{} // queues with a full shard
	fates, shards := map[*push]fate{}, map[message.ShardID]fate{}
	for i, c := range parts {
		f := fateOf(results[i].Status)
		if f == isDone {
			continue
		}
		if shards[c.shard] = f; f == isLeft {
			l.e.forgetHead(c.shard)
		}
		for _, o := range c.offered {
			fates[o.p] |= f
			crowded[o.p.queue.ID] = crowded[o.p.queue.ID] || f == isFull
		}
	}
	if len(fates) == 0 {
		return ps, nil, nil, nil
	}
	for _, p := range ps {
		switch f := fates[p]; {
		case f == 0:
			done = append(done, p)
		case f&isLost != 0:
			lost = append(lost, p)
		case crowded[p.queue.ID]:
			full = append(full, p)
		default:
			var in, out []pushItem
			for _, it := range p.items {
				if shards[p.queue.Shards[it.shard]] == isLeft {
					out = append(out, it)
				} else {
					in = append(in, it)
				}
			}
			if len(in) == 0 {
				left = append(left, p)
				continue
			}
			a, b := l.e.divide(p, in, out)
			done, left = append(done, a), append(left, b)
		}
	}
	return done, left, lost, full
}

// forgetHead makes the next flush to a shard know nothing of its head.
func (e *Engine) forgetHead(id message.ShardID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.heads, id)
}

// keep puts the segment into the cache: the groups of this dispatcher read it from there.
func (l *flushLane) keep(c *part, r store.Appended, sent time.Time) {
	c.dir.Base, c.dir.At = r.Base, r.CreatedAt.UnixMicro()
	l.e.dbtime.observe(dbTimeOf(r.CreatedAt), sent)
	l.e.segments.PutDirectory(c.shard, c.dir)
	l.e.segments.PutBody(c.shard, segcache.NewBody(c.dir, r.CreatedAt, c.enc.Codec, c.enc.Body))
}

// later tells who moves what is due of what was accepted for later.
func (l *flushLane) later(c *part) {
	for _, d := range c.newDelayed() {
		l.e.metrics.delayed.Inc()
		l.e.due.accepted(d.AvailableAt)
	}
}

// announce wakes who waits here, hints others, and learns newer configurations.
func (l *flushLane) announce(parts []*part, results []store.Appended) {
	told := map[int64]bool{}
	for _, i := range highestFirst(parts) {
		c, r := parts[i], results[i]
		if len(c.offered) == 0 || r.ConfigVersion == 0 && r.Status != store.StatusAppended {
			continue
		}
		p := c.offered[0].p
		if r.Status == store.StatusAppended {
			l.e.advanced(c.shard, r.Base+message.Offset(r.Count))
			l.e.rates.Add(p.queue.ID, r.Count)
			if !told[p.queue.ID] {
				told[p.queue.ID] = true
				l.e.hints.MessagesAvailable(p.tenant, p.name)
			}
		}
		if l.e.catalog.InvalidateOlder(p.queue, r.ConfigVersion) {
			if len(l.seen) > maxSeen {
				clear(l.seen)
			}
			l.seen[p.queue.ID] = r.ConfigVersion
		}
	}
}

// highestFirst orders parts so that of each queue the highest lane comes first: who waits is to hear of that first. The shards of a queue have growing ids.
func highestFirst(parts []*part) []int {
	order := make([]int, len(parts))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(parts[b].shard, parts[a].shard) })
	return order
}

// maxSeen bounds what a lane remembers of configurations; forgetting costs that old limits hold one commit longer.
const maxSeen = 4096

// move sends pushes whose queue was deleted to the queue that has the name now.
func (l *flushLane) move(ctx context.Context, ps []*push) {
	for _, p := range ps {
		p.moves++
		l.e.catalog.InvalidateQueue(p.tenant, p.name)
		q, err := l.e.queue(ctx, p.tenant, p.name, true)
		if err == nil && p.moves > maxMoves {
			err = store.ErrQueueNotFound
		}
		if err == nil {
			err = l.e.place(p, q)
		}
		if err != nil {
			l.e.finish(p, l.e.dbError(err))
			continue
		}
		l.e.flushLane(q.ID).put(p)
	}
}
