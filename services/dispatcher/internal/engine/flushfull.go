package engine

import (
	"context"
	"fmt"
	"time"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	// fullRetryAfter is when a push to a full queue may be tried again.
	fullRetryAfter = time.Second
	// maxSqueezes is how often a push that should have fit is tried again beside others that were refused.
	maxSqueezes = 3
)

// QueueFullError says that a queue holds as much as it may. Nothing of the push was done.
type QueueFullError struct {
	Option     queue.Option // the limit
	Limit      int
	RetryAfter time.Duration
}

func (e *QueueFullError) Error() string {
	return fmt.Sprintf("the queue is full: %s is %d", e.Option, e.Limit)
}

func fullOfBytes(q *catalog.Queue) *QueueFullError {
	return &QueueFullError{Option: queue.OptMaxQueueBytes, Limit: q.Config.Limits.Bytes, RetryAfter: fullRetryAfter}
}

func fullOfMessages(q *catalog.Queue) *QueueFullError {
	return &QueueFullError{Option: queue.OptMaxQueueMessages, Limit: q.Config.Limits.Messages, RetryAfter: fullRetryAfter}
}

// share is how many bytes one shard of a queue may hold; 0 is no limit.
func share(q *catalog.Queue) int64 { return queue.Share(q.Config.Limits.Bytes, len(q.Shards)) }

// measure finds out how many messages the queues of pushes take. A push whose queue cannot be measured is answered; the others are returned.
func (l *flushLane) measure(ctx context.Context, ps []*push) []*push {
	clear(l.room)
	kept := ps[:0:len(ps)]
	for _, p := range ps {
		if _, known := l.room[p.queue.ID]; !known && p.queue.Config.Limits.Messages > 0 {
			room, err := l.e.depths.room(ctx, p.queue)
			if err != nil && l.e.spool != nil && pg.IsUnavailable(err) { // the flush meets the same, and decides
				kept = append(kept, p)
				continue
			}
			if err != nil {
				l.e.finish(p, l.e.dbError(err))
				continue
			}
			l.room[p.queue.ID] = room
		}
		kept = append(kept, p)
	}
	return kept
}

// admit refuses the pushes for whose messages there is no room, and returns the others. One that is refused takes no room from those behind it.
func (l *flushLane) admit(ps []*push) []*push {
	if len(l.room) == 0 {
		return ps
	}
	kept := ps[:0:len(ps)]
	for _, p := range ps {
		if n := int64(len(p.items)); l.reserve(p.queue.ID, n) {
			kept = append(kept, p)
		} else {
			l.refuseFull(p, fullOfMessages(p.queue))
		}
	}
	return kept
}

// reserve takes room for messages of a queue.
func (l *flushLane) reserve(queueID, n int64) bool {
	room, limited := l.room[queueID]
	if limited && n > room {
		return false
	}
	if limited {
		l.room[queueID] = room - n
	}
	return true
}

func (l *flushLane) refuseFull(p *push, err *QueueFullError) {
	l.e.metrics.full.Inc()
	l.e.finish(p, err)
}

// beyond returns the pushes of the keyed parts judged so far whose new messages find no room. What is a duplicate needs none.
func (l *flushLane) beyond(judged []*part) []*push {
	used, refused := map[int64]int64{}, map[*push]bool{}
	var list []*push
	for _, c := range judged {
		counts := map[*push]int64{}
		var order []*push
		for _, o := range c.owners {
			if counts[o.p]++; counts[o.p] == 1 {
				order = append(order, o.p)
			}
		}
		for _, p := range order {
			room, limited := l.room[p.queue.ID]
			switch n := counts[p]; {
			case !limited || refused[p]:
			case used[p.queue.ID]+n > room:
				refused[p] = true
				list = append(list, p)
			default:
				used[p.queue.ID] += n
			}
		}
	}
	return list
}

// overflow returns the pushes of a part that do not fit into room bytes, those before them that fit being in. At least one is returned: all together did
// not fit. Each is measured by itself, so that nobody is refused for what another sent.
func (l *flushLane) overflow(c *part, room int64) []*push {
	frames := map[*push][]segment.Frame{}
	var order []*push
	for i, o := range c.owners {
		if frames[o.p] == nil {
			order = append(order, o.p)
		}
		frames[o.p] = append(frames[o.p], c.frames[i])
	}
	var refused []*push
	for _, p := range order {
		size := room + 1
		if encoded, _, err := c.queue.Encode(l.e.encoder, frames[p]); err == nil {
			size = int64(len(encoded.Body))
		}
		if size > room {
			refused = append(refused, p)
		} else {
			room -= size
		}
	}
	if len(refused) == 0 {
		return order[len(order)-1:]
	}
	return refused
}

// overflowKeyed is overflow for a part of which the database holds the lock and kept bytes; none if it fits.
func (l *flushLane) overflowKeyed(c *part, kept int64) []*push {
	if len(c.frames) == 0 {
		return nil
	}
	most := share(c.owners[0].p.queue)
	if most == 0 || kept+int64(len(c.enc.Body)) <= most {
		return nil
	}
	return l.overflow(c, most-kept)
}

// noRoom makes the flush be tried without pushes for which there is no room.
func (l *flushLane) noRoom(ps []*push, err *QueueFullError) error {
	l.e.metrics.full.Add(float64(len(ps)))
	return &refusedError{ps, err}
}

// squeeze answers the pushes for whose bytes there was no room, and returns those that were left out beside them, to be tried again at once.
func (l *flushLane) squeeze(ps []*push, parts []*part, results []store.Appended) []*push {
	full, left := map[*push]bool{}, map[message.ShardID]bool{}
	for i, c := range parts {
		r := results[i]
		if r.Status == store.StatusFull || r.Status == store.StatusLeftOut {
			left[c.shard] = true
		}
		if r.Status != store.StatusFull || len(c.offered) == 0 {
			continue
		}
		if q := c.offered[0].p.queue; r.ConfigVersion == q.ConfigVersion { // else by another limit than the present one
			for _, p := range l.overflow(c, share(q)-r.Kept) {
				full[p] = true
			}
		}
	}
	var again []*push
	for _, p := range ps {
		if p.squeezed++; full[p] || p.squeezed > maxSqueezes {
			l.refuseFull(p, fullOfBytes(p.queue))
		} else {
			again = append(again, p)
		}
	}
	return again
}
