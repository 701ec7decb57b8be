package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"

	"postrider.dev/pkg/pg"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/engine/segcache"
	"postrider.dev/services/dispatcher/internal/store"
)

// maxMoves is how many deleted queues in a row a push meets under one name before it is refused.
const maxMoves = 3

// errNotHappened says that a flush with an unknown outcome turned out not to be in the log.
var errNotHappened = errors.New("the flush did not reach the log")

// part is what goes to one shard of one flush.
type part struct {
	shard  message.ShardID
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
	verdicts []verdict // of offered; made anew by each encoding, like frames, owners and replays
	replays  []replay
}

// owner says whose message a frame is.
type owner struct {
	p    *push
	item int
}

// commit brings pushes into the log, in transactions of whole pushes, and answers each.
func (l *flushLane) commit(ctx context.Context, ps []*push) {
	l.revalidate(ctx, ps)
	keyedQueues := map[int64]bool{}
	for _, p := range ps {
		if p.keyed {
			keyedQueues[p.queue.ID] = true
		}
	}
	if len(keyedQueues) == 0 {
		l.try(ctx, ps, l.flushPlain)
		return
	}
	var plain, keyed []*push
	for _, p := range ps {
		if keyedQueues[p.queue.ID] {
			keyed = append(keyed, p)
		} else {
			plain = append(plain, p)
		}
	}
	if len(plain) > 0 {
		l.try(ctx, plain, l.flushPlain)
	}
	l.try(ctx, keyed, l.flushKeyed)
}

// revalidate checks pushes again whose queue was configured after they were checked. It waits for a read, which is rare: once a configuration.
func (l *flushLane) revalidate(ctx context.Context, ps []*push) {
	for _, p := range ps {
		seen, ok := l.seen[p.queue.ID]
		if !ok || seen <= p.queue.ConfigVersion {
			continue
		}
		q, err := l.e.catalog.Queue(ctx, p.tenant, p.name, true)
		if err != nil {
			continue // the flush itself will say what is wrong
		}
		bytes := p.bytes
		p.place(q)
		l.e.pushBytes.give(bytes - p.bytes)
	}
}

// try runs flush until it succeeds, is cut in two because of a bad value, or patience ends. flush answers what it brought in.
func (l *flushLane) try(ctx context.Context, ps []*push, flush func(context.Context, []*push) error) {
	for n := 0; len(ps) > 0; n++ {
		err := flush(ctx, ps)
		switch {
		case err == nil:
			return
		case pg.IsDataError(err) || errors.Is(err, segment.ErrTooLarge):
			l.bisect(ctx, ps, err, flush)
			return
		case !retryable(err):
			l.failAll(ps, l.e.dbError(err))
			return
		}
		l.e.metrics.flushRetries.Inc()
		l.e.trouble("flush", err)
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
			l.finish(p, &UnavailableError{Err: err})
		} else {
			kept = append(kept, p)
		}
	}
	return kept
}

func (l *flushLane) failAll(ps []*push, err error) {
	for _, p := range ps {
		l.finish(p, err)
	}
}

// bisect finds the one item whose value the database refuses: pushes are tried in halves, and the items of a single push one by one, so that a bad item
// fails alone. (The items of such a push are then no longer in one commit.)
func (l *flushLane) bisect(ctx context.Context, ps []*push, err error, flush func(context.Context, []*push) error) {
	l.e.metrics.bisections.Inc()
	if len(ps) > 1 {
		l.try(ctx, ps[:len(ps)/2], flush)
		l.try(ctx, ps[len(ps)/2:], flush)
		return
	}
	p := ps[0]
	if len(p.items) <= 1 {
		for _, it := range p.items {
			p.results[it.index].Status, p.results[it.index].Error = queuev1.PushStatus_PUSH_STATUS_FAILED, itemError(l.e.dbError(err))
		}
		l.finish(p, nil)
		return
	}
	if p.requestKey { // its key must be written with all of it
		l.finish(p, l.e.dbError(err))
		return
	}
	l.halve(ctx, p, flush)
}

// halve tries the two halves of a push apart and answers it when both are answered: one by this goroutine, perhaps, the other by the answerer.
func (l *flushLane) halve(ctx context.Context, p *push, flush func(context.Context, []*push) error) {
	var mu sync.Mutex // guards the next two
	remaining, failed := 2, error(nil)
	join := func(_ *queuev1.PushResponse, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed = err
		}
		if remaining--; remaining == 0 {
			l.finish(p, failed)
		}
	}
	half := func(items []pushItem) *push {
		h := *p
		h.items, h.answer, h.bytes, h.half = items, join, 0, true
		return &h
	}
	middle := len(p.items) / 2
	l.try(ctx, []*push{half(p.items[:middle])}, flush)
	l.try(ctx, []*push{half(p.items[middle:])}, flush)
}

// flushPlain brings in pushes without keys: one statement over all their shards.
func (l *flushLane) flushPlain(ctx context.Context, ps []*push) error {
	parts := l.split(ps)
	appends := make([]store.Append, len(parts))
	for i, c := range parts {
		for _, o := range c.offered {
			c.frames = append(c.frames, o.p.items[o.item].frame)
		}
		c.owners = c.offered
		if err := l.encode(c); err != nil {
			return err
		}
		appends[i] = store.Append{Encoded: c.enc, Shard: c.shard, Known: c.known, FlushID: c.id}
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
			c = &part{shard: id, known: l.e.headOf(id), window: p.queue.Config.IdempotencyWindow}
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
	c.enc, c.dir, err = l.e.encoder.Build(c.frames)
	return err
}

// recover finds out whether a flush with an unknown outcome is in the log (R5). One shard tells for all: they were one transaction.
func (l *flushLane) recover(ctx context.Context, parts []*part, cause error) ([]store.Appended, error) {
	l.e.trouble("flush", cause)
	results := make([]store.Appended, len(parts))
	for i, c := range parts {
		results[i] = store.Appended{Shard: c.shard, Status: store.StatusNothing}
		if len(c.frames) == 0 {
			continue
		}
		found, ok, err := l.find(ctx, c)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, errNotHappened
		}
		results[i] = found
	}
	return results, nil
}

// find asks until it gets an answer or patience ends.
func (l *flushLane) find(ctx context.Context, c *part) (store.Appended, bool, error) {
	end := l.e.clk.Now().Add(l.e.cfg.Patience)
	for n := 0; ; n++ {
		sctx, cancel := context.WithTimeout(ctx, l.e.cfg.StatementTimeout)
		found, ok, err := l.e.db.FindFlush(sctx, c.shard, c.id, c.known)
		cancel()
		if err == nil || l.e.clk.Now().After(end) {
			if err != nil {
				err = &UnavailableError{Err: err}
			}
			return found, ok, err
		}
		if l.e.pauseBetween(ctx, n) != nil {
			return found, false, &UnavailableError{Err: err}
		}
	}
}

// landed spreads the news of a commit and has its pushes answered.
func (l *flushLane) landed(ctx context.Context, ps []*push, parts []*part, results []store.Appended, sent time.Time) {
	l.e.metrics.flushes.Inc()
	var lost map[*push]bool
	messages := 0
	for i, c := range parts {
		r := results[i]
		if r.Status == store.StatusSealed || r.Status == store.StatusGone {
			for _, o := range c.offered {
				if lost == nil {
					lost = map[*push]bool{}
				}
				lost[o.p] = true
			}
			continue
		}
		if r.Status == store.StatusAppended {
			messages += len(c.frames)
			l.keep(c, r, sent)
		}
	}
	l.e.metrics.flushMessages.Observe(float64(messages))
	l.e.metrics.pushed.Add(float64(messages))
	l.announce(parts, results)
	var moved, done []*push
	for _, p := range ps {
		if lost[p] {
			moved = append(moved, p)
		} else {
			done = append(done, p)
		}
	}
	l.answers <- flushed{pushes: done, parts: parts, results: results}
	l.move(ctx, moved)
}

// keep puts the segment into the cache: the groups of this dispatcher read it from there.
func (l *flushLane) keep(c *part, r store.Appended, sent time.Time) {
	c.dir.Base = r.Base
	l.e.dbtime.observe(dbTimeOf(r.CreatedAt), sent)
	l.e.segments.PutDirectory(c.shard, c.dir)
	l.e.segments.PutBody(c.shard, segcache.NewBody(c.dir, r.CreatedAt, c.enc.Codec, c.enc.Body))
}

// announce wakes who waits here, hints others, and learns newer configurations.
func (l *flushLane) announce(parts []*part, results []store.Appended) {
	told := map[int64]bool{}
	for i, c := range parts {
		r := results[i]
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

// maxSeen bounds what a lane remembers of configurations; forgetting costs that old limits hold one commit longer.
const maxSeen = 4096

// move sends pushes whose queue was deleted to the queue that has the name now.
func (l *flushLane) move(ctx context.Context, ps []*push) {
	for _, p := range ps {
		p.moves++
		l.e.catalog.InvalidateQueue(p.tenant, p.name)
		q, err := l.e.catalog.Queue(ctx, p.tenant, p.name, true)
		if err == nil && p.moves > maxMoves {
			err = store.ErrQueueNotFound
		}
		if err != nil {
			l.finish(p, l.e.dbError(err))
			continue
		}
		bytes := p.bytes
		p.place(q)
		l.e.pushBytes.give(bytes - p.bytes)
		l.e.flushLane(q.ID).put(p)
	}
}
