package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

// part is what goes to one shard of one flush.
type part struct {
	shard  message.ShardID
	queue  *catalog.Queue // as the first of its pushes knows it
	known  message.Offset
	id     store.FlushID
	frames []segment.Frame
	owners []owner // of frames
	enc    segment.Encoded
	dir    segment.Directory

	window   time.Duration
	offered  []owner // all items for this shard, before duplicates are dropped
	keys     []store.Key
	slots    map[store.KeyID]int // index in keys
	requests []requestSlot
	judged   bool      // that shard would take an append, and the next three are made
	verdicts []verdict // of offered; made anew by each encoding, like frames, owners, replays and delayed
	replays  []replay
	delayed  []owner // what is accepted for later, in the order in which it was offered
}

// owner says whose message a frame is.
type owner struct {
	p    *push
	item int
}

// commit brings pushes into the log, in transactions of whole pushes, and answers each.
func (l *flushLane) commit(ctx context.Context, ps []*push) {
	ps, diverted := l.sort(ps)
	plain, keyed := byKeys(l.measure(ctx, l.revalidate(ctx, ps)))
	keyed, later := withoutClashes(keyed)
	l.try(ctx, l.admit(plain), l.flushPlain)
	l.try(ctx, keyed, l.flushKeyed)
	l.putBack(l.divertSorted(diverted, append(l.again, later...)))
	l.again = nil
}

// byKeys tells pushes to queues into which none of them has a key from the others.
func byKeys(ps []*push) (plain, keyed []*push) {
	if !slices.ContainsFunc(ps, func(p *push) bool { return p.keyed }) {
		return ps, nil
	}
	queues := map[int64]bool{}
	for _, p := range ps {
		if p.keyed {
			queues[p.queue.ID] = true
		}
	}
	for _, p := range ps {
		if queues[p.queue.ID] {
			keyed = append(keyed, p)
		} else {
			plain = append(plain, p)
		}
	}
	return plain, keyed
}

// revalidate checks pushes again whose queue was configured after they were checked, and returns those that still go. It waits for a read, which is rare:
// once a configuration.
func (l *flushLane) revalidate(ctx context.Context, ps []*push) []*push {
	kept := ps[:0:len(ps)]
	for _, p := range ps {
		if seen, ok := l.seen[p.queue.ID]; ok && seen > p.queue.ConfigVersion {
			if q, err := l.e.queueForPush(ctx, p.tenant, p.name); err == nil { // else the flush itself will say what is wrong
				if err := l.e.place(p, q); err != nil {
					l.e.finish(p, err)
					continue
				}
			}
		}
		kept = append(kept, p)
	}
	return kept
}

// flushFunc brings in pushes: all of them, and sees to their answers, or returns an error, and then nothing was written and nothing answered. Where nobody
// knows, the error is *OutcomeUnknownError.
type flushFunc func(context.Context, []*push) error

// refusedError says that some pushes of the flush are at fault; the others are to be tried without them.
type refusedError struct {
	ps  []*push
	err error
}

func (e *refusedError) Error() string { return e.err.Error() }

// try runs flush until it succeeds, is cut in two because of a bad value, or patience ends.
func (l *flushLane) try(ctx context.Context, ps []*push, flush flushFunc) {
	began := l.e.clk.Now()
	for n := 0; len(ps) > 0; n++ {
		if l.e.spool.isAway() {
			l.divertAll(ps, nil)
			return
		}
		err := flush(ctx, ps)
		if err == nil {
			return
		}
		if doubt, ok := errors.AsType[*doubtError](err); ok {
			l.divertAll(ps, doubt.parts)
			return
		}
		if refused, ok := errors.AsType[*refusedError](err); ok {
			for _, p := range refused.ps {
				l.e.finish(p, refused.err)
			}
			ps = without(ps, refused.ps)
			continue
		}
		switch {
		case pg.IsDataError(err) || errors.Is(err, segment.ErrTooLarge):
			l.bisect(ctx, ps, err, flush)
			return
		case !retryable(err) && !l.e.spool.suspect(ctx, err, began.Add(-divertAfter)):
			l.failAll(ps, l.e.dbError(err))
			return
		}
		l.e.metrics.flushRetries.Inc()
		l.e.trouble("flush", err)
		if l.e.spool.suspect(ctx, err, began) {
			continue
		}
		if l.e.pauseBetween(ctx, n) != nil {
			l.failAll(ps, &UnavailableError{Err: err})
			return
		}
		ps = l.expire(ps, err)
	}
}

// retryable says that the whole transaction did nothing and may be run again.
func retryable(err error) bool {
	return errors.Is(err, errNotHappened) || pg.IsRetryable(err) || errors.Is(err, context.DeadlineExceeded)
}

// expire refuses the pushes whose patience is over and returns the others.
func (l *flushLane) expire(ps []*push, err error) []*push {
	now := l.e.clk.Now()
	kept := ps[:0:0]
	for _, p := range ps {
		if now.After(p.deadline) {
			l.e.finish(p, &UnavailableError{Err: err})
		} else {
			kept = append(kept, p)
		}
	}
	return kept
}

func (l *flushLane) failAll(ps []*push, err error) {
	for _, p := range ps {
		l.e.finish(p, err)
	}
}

// flushPlain brings in pushes without keys: one statement over all their shards.
func (l *flushLane) flushPlain(ctx context.Context, ps []*push) error {
	parts := l.split(ps)
	appends := make([]store.Append, len(parts))
	for i, c := range parts {
		c.frames = make([]segment.Frame, len(c.offered))
		for j, o := range c.offered {
			c.frames[j] = o.p.items[o.item].frame
		}
		c.owners = c.offered
		if err := l.encode(c); err != nil {
			return err
		}
		appends[i] = store.Append{
			Encoded: c.enc, Shard: c.shard, Known: c.known, FlushID: c.id, MaxBytes: share(c.queue), Key: c.queue.Key(),
		}
	}
	sctx, cancel := context.WithTimeout(ctx, l.e.cfg.StatementTimeout)
	defer cancel()
	sent := l.e.clk.Now()
	results, err := l.e.db.Flush(sctx, appends)
	if pg.IsOutcomeUnknown(err) {
		results, err = l.recover(ctx, parts, err)
	}
	if err != nil {
		return err
	}
	l.landed(ctx, ps, parts, results, sent)
	return nil
}

// split sorts the items of pushes by shard; the order of pushes and of items is kept inside each.
func (l *flushLane) split(ps []*push) []*part {
	var parts []*part
	places := map[message.ShardID]*part{}
	of := func(p *push, shard int) *part {
		id := p.queue.Shards[shard]
		c := places[id]
		if c == nil {
			c = &part{shard: id, queue: p.queue, known: l.e.headOf(id), window: p.queue.Config.IdempotencyWindow}
			_, _ = rand.Read(c.id[:]) // never fails
			places[id] = c
			parts = append(parts, c)
		}
		return c
	}
	for _, p := range ps {
		for i := range p.items {
			c := of(p, p.items[i].shard)
			c.offered = append(c.offered, owner{p, i})
		}
		if p.requestKey {
			of(p, p.arbiter)
		}
	}
	return parts
}

// encode builds the segment of c.frames.
func (l *flushLane) encode(c *part) (err error) {
	c.enc, c.dir, err = c.queue.Encode(l.e.encoder, c.frames)
	return err
}
