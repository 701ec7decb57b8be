package engine

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/tenant"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

// A page of the log holds at most so many messages and frame bytes, and always one message.
const (
	pageMessages = 256
	pageBytes    = 256 << 10
)

// errHole says that offsets which are neither trimmed nor beyond the head are not there. It may be that they are being trimmed now.
var errHole = errors.New("the log has a hole")

// LocateLog finds where in a queue's shards a reader begins that wants what start says, of one moment. With create the queue is made if there is none.
func (e *Engine) LocateLog(ctx context.Context, t tenant.ID, name string, start queue.Start, create bool) (int64, []store.LogBounds, error) {
	for n := 0; ; n++ {
		q, err := e.queue(ctx, t, name, create)
		if err != nil {
			return 0, nil, e.dbError(err)
		}
		bounds, err := persist(ctx, e, func(ctx context.Context) ([]store.LogBounds, error) {
			ctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
			defer cancel()
			return e.control.LogBounds(ctx, q.Queue, start)
		})
		if errors.Is(err, store.ErrQueueNotFound) && n < maxMoves {
			e.catalog.InvalidateQueue(t, name)
			continue
		}
		if err != nil {
			return 0, nil, e.dbError(err)
		}
		for _, b := range bounds {
			e.advanced(b.Shard, b.Head)
		}
		return q.ID, bounds, nil
	}
}

// ReadLog returns the next page of a shard of the queue, which MUST still be the one with this id. A page without a next says that the log ends there, which was
// read from the database; the error matches ErrLogReplaced if it ends before.
func (e *Engine) ReadLog(ctx context.Context, t tenant.ID, name string, id int64, shard int, from message.Offset) (*dispatcherv1.LogPage, error) {
	q, err := e.logQueue(ctx, t, name, id)
	if err != nil {
		return nil, err
	}
	if shard < 0 || shard >= len(q.Shards) {
		return nil, fmt.Errorf("read shard %d of %d: %w", shard, len(q.Shards), ErrLogReplaced)
	}
	if from >= e.headOf(q.Shards[shard]) {
		if err := e.prove(ctx, q, shard, from); err != nil {
			return nil, err
		}
	}
	if _, cached := e.segments.Body(q.Shards[shard], from); !cached {
		if !e.backlog.enter(ctx) { // who reads a long way back must not stand in the way of pops
			return nil, context.Cause(ctx)
		}
		defer e.backlog.leave()
	}
	return e.page(ctx, q, shard, from, e.headOf(q.Shards[shard]))
}

// Page returns what follows from in a shard of the queue, up to what is known to be committed.
func (f *Tail) Page(ctx context.Context, shard int, from message.Offset) (*dispatcherv1.LogPage, error) {
	return f.e.page(ctx, f.belongs(), shard, from, f.Head(shard))
}

// logQueue returns the queue of that name, if it is still the one with this id.
func (e *Engine) logQueue(ctx context.Context, t tenant.ID, name string, id int64) (*catalog.Queue, error) {
	q, err := e.queue(ctx, t, name, false)
	if err == nil && q.ID < id { // memory is older than what the caller has seen
		e.catalog.InvalidateQueue(t, name)
		q, err = e.queue(ctx, t, name, false)
	}
	if err != nil {
		return nil, e.dbError(err)
	}
	if q.ID != id {
		return nil, fmt.Errorf("queue %q is another one now: %w", name, store.ErrQueueNotFound)
	}
	return q, nil
}

// prove returns nil if the shard's log reaches an offset, which is read from the database.
func (e *Engine) prove(ctx context.Context, q *catalog.Queue, shard int, from message.Offset) error {
	b, err := e.bounds(ctx, q, shard)
	if err != nil {
		return err
	}
	if from > b.Head {
		return fmt.Errorf("shard %d ends at %d, not at %d: %w", shard, b.Head, from, ErrLogReplaced)
	}
	return nil
}

// bounds reads what a shard holds.
func (e *Engine) bounds(ctx context.Context, q *catalog.Queue, shard int) (store.LogBounds, error) {
	bounds, err := persist(ctx, e, func(ctx context.Context) ([]store.LogBounds, error) {
		ctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
		defer cancel()
		return e.control.LogBounds(ctx, q.Queue, queue.Start{})
	})
	if err != nil {
		if errors.Is(err, store.ErrQueueNotFound) {
			e.catalog.InvalidateQueue(q.Tenant, q.Name)
		}
		return store.LogBounds{}, e.dbError(err)
	}
	e.advanced(bounds[shard].Shard, bounds[shard].Head)
	return bounds[shard], nil
}

// page reads [from, next) of a shard, next at most head, which is committed. What was deleted before it was called is left out without a word, so that a page
// may have no message and a next all the same.
func (e *Engine) page(ctx context.Context, q *catalog.Queue, shard int, from, head message.Offset) (*dispatcherv1.LogPage, error) {
	p := &dispatcherv1.LogPage{Shard: int32(shard), From: int64(from), Next: int64(from)}
	if from >= head {
		return p, nil
	}
	id := q.Shards[shard]
	span, err := persist(ctx, e, func(ctx context.Context) (span, error) { return e.pageSpan(ctx, id, from, head) })
	if err != nil {
		return nil, e.dbError(err)
	}
	first, end := span.first, span.end
	if first < end {
		offsets := make([]message.Offset, 0, end-first)
		for at := first; at < end; at++ {
			offsets = append(offsets, at)
		}
		found, err := e.messages(ctx, id, offsets)
		if err != nil {
			return nil, e.dbError(err)
		}
		for first < end && found[first].at.IsZero() { // trimmed after its directory was read
			first++
		}
		deleted, err := e.tombstones(ctx, id, first, end) // whatever memory has of them
		if err != nil {
			return nil, e.dbError(err)
		}
		begin := first
		for ; first < end && !found[first].at.IsZero(); first++ {
			if !deleted.Has(first) {
				p.Messages = append(p.Messages, subscribed(q, shard, first, found[first]))
			}
		}
		if p.Next = int64(first); first > begin {
			if begin > from {
				p.Trimmed = int64(begin)
			}
			return p, nil
		}
	}
	return p, e.trimmed(ctx, q, shard, p)
}

// tombstones reads which messages of a range were deleted.
func (e *Engine) tombstones(ctx context.Context, shard message.ShardID, from, to message.Offset) (*settled.Marks, error) {
	return persist(ctx, e, func(ctx context.Context) (*settled.Marks, error) {
		if !e.readers.enter(ctx) {
			return nil, context.Cause(ctx)
		}
		defer e.readers.leave()
		ctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
		defer cancel()
		return e.db.Tombstones(ctx, shard, from, to)
	})
}

// trimmed says in a page for which there was nothing in the log why that is so.
func (e *Engine) trimmed(ctx context.Context, q *catalog.Queue, shard int, p *dispatcherv1.LogPage) error {
	b, err := e.bounds(ctx, q, shard)
	if err != nil {
		return err
	}
	if int64(b.Tail) <= p.GetFrom() {
		return &UnavailableError{Err: fmt.Errorf("shard %d at %d: %w", b.Shard, p.GetFrom(), errHole)}
	}
	p.Trimmed, p.Next = int64(b.Tail), int64(b.Tail)
	return nil
}

// span is a range of offsets, [first, end).
type span struct{ first, end message.Offset }

// pageSpan returns which offsets a page of [from, to) has. Where the first are trimmed it begins behind them; where all are, it is empty.
func (e *Engine) pageSpan(ctx context.Context, shard message.ShardID, from, to message.Offset) (span, error) {
	if err := e.sameDatabase(ctx); err != nil {
		return span{}, err
	}
	s := span{from, from}
	for bytes := 0; s.end < to && s.end-s.first < pageMessages; {
		d, ok := e.segments.Directory(shard, s.end)
		if !ok {
			found, err := e.readDirectories(ctx, shard, s.end, to)
			if err != nil || len(found) == 0 {
				return s, err
			}
			d = found[0]
		}
		switch {
		case d.Base <= s.end:
		case s.end == s.first:
			s = span{d.Base, d.Base}
		default:
			return s, nil // what is missing here is the next page's business
		}
		for ; s.end < min(d.End(), to) && s.end-s.first < pageMessages; s.end++ {
			if bytes += int(d.Sizes[s.end-d.Base]); bytes > pageBytes && s.end > s.first {
				return s, nil
			}
		}
	}
	return s, nil
}

// readDirectories reads and remembers the directories of a page of [from, to), beginning with the first that there is.
func (e *Engine) readDirectories(ctx context.Context, shard message.ShardID, from, to message.Offset) ([]segment.Directory, error) {
	if !e.readers.enter(ctx) {
		return nil, context.Cause(ctx)
	}
	defer e.readers.leave()
	ctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
	defer cancel()
	found, err := e.db.Directories(ctx, shard, from, to, pageMessages)
	for _, d := range found {
		e.segments.PutDirectory(shard, d)
	}
	return found, err
}

func subscribed(q *catalog.Queue, index int, at message.Offset, m read) *queuev1.SubscribedMessage {
	out := &queuev1.SubscribedMessage{
		MessageId: message.ID{Shard: q.Shards[index], Offset: at}.String(), Partition: m.Partition, Offset: int64(at), Shard: int32(index),
		Priority: int32(q.Layout().Priority(index)),
		Payload:  m.Payload, ContentType: m.ContentType, ClientId: m.ClientID, CreatedAt: timestamppb.New(m.at),
	}
	if len(m.Headers) > 0 {
		out.Headers = make(map[string]string, len(m.Headers))
		for _, h := range m.Headers {
			out.Headers[h.Name] = h.Value
		}
	}
	return out
}
