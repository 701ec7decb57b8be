package engine

import (
	"context"
	"errors"
	"sync"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// bisect finds the one item whose value the database refuses: pushes are tried in halves, and the items of a single push one by one, so that a bad item
// fails alone. (The items of such a push are then no longer in one commit.)
func (l *flushLane) bisect(ctx context.Context, ps []*push, err error, flush flushFunc) {
	l.e.metrics.bisections.Inc()
	if len(ps) > 1 {
		l.try(ctx, ps[:len(ps)/2], flush)
		l.try(ctx, ps[len(ps)/2:], flush)
		return
	}
	p := ps[0]
	if len(p.items) <= 1 {
		p.refuseItems(l.e.dbError(err))
		l.e.finish(p, nil)
		return
	}
	if p.requestKey { // its key must be written with all of it
		l.e.finish(p, l.e.dbError(err))
		return
	}
	middle := len(p.items) / 2
	first, second := l.e.divide(p, p.items[:middle], p.items[middle:])
	l.try(ctx, []*push{first}, flush)
	l.try(ctx, []*push{second}, flush)
}

// refuseItems gives every item of the push the error as its result.
func (p *push) refuseItems(err error) {
	for _, it := range p.items {
		r := p.results[it.index]
		r.Status, r.Error = queuev1.PushStatus_PUSH_STATUS_FAILED, itemError(err)
	}
}

// joint answers a push when both its halves are answered: by a lane, perhaps, or by its answerer.
type joint struct {
	e     *Engine
	whole *push

	mu     sync.Mutex // guards the rest
	left   int
	failed []failure
}

type failure struct {
	half *push
	err  error
}

// divide makes two pushes of the items of one, which is answered once both are. A half goes its own way: it may be divided again, or move to another queue.
func (e *Engine) divide(p *push, first, second []pushItem) (a, b *push) {
	j := &joint{e: e, whole: p, left: 2}
	return j.half(first), j.half(second)
}

func (j *joint) half(items []pushItem) *push {
	h := *j.whole
	h.items, h.half, h.bytes, h.charged = items, true, 0, 0
	for i := range items {
		h.bytes += int64(len(items[i].frame.Bytes))
	}
	h.answer = func(_ *queuev1.PushResponse, err error) { j.end(&h, err) }
	return &h
}

// end notes the end of a half. If one half came to nothing, its items are refused; if nobody knows what became of one, nobody knows of the whole.
func (j *joint) end(half *push, err error) {
	j.mu.Lock()
	if err != nil {
		j.failed = append(j.failed, failure{half, err})
	}
	j.left--
	left, failed := j.left, j.failed
	j.mu.Unlock()
	if left > 0 {
		return
	}
	for _, f := range failed {
		if _, unknown := errors.AsType[*OutcomeUnknownError](f.err); unknown {
			j.e.finish(j.whole, f.err)
			return
		}
	}
	switch len(failed) {
	case 2:
		j.e.finish(j.whole, failed[0].err)
		return
	case 1:
		failed[0].half.refuseItems(failed[0].err)
	}
	j.e.finish(j.whole, nil)
}
