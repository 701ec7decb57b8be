package engine

import (
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/store"
)

// flushed is a commit whose pushes are to be answered. Pushes that go on elsewhere are not among them.
type flushed struct {
	pushes  []*push
	parts   []*part
	results []store.Appended
}

// answer answers commits in their order, beside the lane, so that the next commit does not wait for it. It ends when answers is closed.
func (l *flushLane) answer() {
	for f := range l.answers {
		for i, c := range f.parts {
			if fateOf(f.results[i].Status) != isDone {
				continue // its pushes are on their way elsewhere
			}
			if f.results[i].Status == store.StatusAppended {
				c.name(f.results[i].Base)
				l.e.sightings.note(c, f.results[i].Base, f.results[i].CreatedAt)
			}
			l.e.metrics.duplicates.Add(float64(c.explain()))
		}
		for _, p := range f.pushes {
			l.e.finish(p, nil)
		}
	}
}

// name tells each appended message its place.
func (c *part) name(base message.Offset) {
	for i, o := range c.owners {
		r := o.p.results[o.p.items[o.item].index]
		r.Status = queuev1.PushStatus_PUSH_STATUS_QUEUED
		locate(r, c.shard, base+message.Offset(i), nil)
	}
}

// explain tells the items that were not appended why, and returns how many were duplicates.
func (c *part) explain() (duplicates int) {
	for i := range c.verdicts {
		v := &c.verdicts[i]
		o := c.offered[i]
		r := o.p.results[o.p.items[o.item].index]
		switch {
		case v.err != nil:
			r.Status, r.Error = queuev1.PushStatus_PUSH_STATUS_FAILED, itemError(v.err)
		case v.duplicate:
			duplicates++
			r.Status = queuev1.PushStatus_PUSH_STATUS_DUPLICATE
			locate(r, c.shard, v.offset, v.pending)
		case v.pending != nil:
			r.Status = queuev1.PushStatus_PUSH_STATUS_QUEUED
			locate(r, c.shard, 0, v.pending)
		}
	}
	for _, replay := range c.replays {
		replay.p.replayed = true
		for _, a := range replay.answers {
			if a.index < len(replay.p.results) {
				a.fill(c.shard, replay.p.results[a.index])
			}
		}
	}
	return duplicates
}
