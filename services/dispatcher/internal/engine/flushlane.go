package engine

import (
	"context"
	"sync"
	"sync/atomic"
)

// flushLane gathers pushes while the previous commit is in flight.
type flushLane struct {
	e       *Engine
	wake    chan struct{}
	answers chan flushed
	seen    map[int64]int64 // newest config_version seen, by queue; belongs to run
	room    map[int64]int64 // messages that may be appended, of the queues of a batch that limit them; belongs to run
	again   []*push         // of the batch that is being committed: what goes into the next one; belongs to run
	waiting []*push         // for the spool to be drained, in order; belongs to run
	recheck atomic.Bool     // those that wait are to be looked at again

	mu      sync.Mutex // guards the rest
	pending []*push
	closed  bool
}

func newFlushLane(e *Engine) *flushLane {
	return &flushLane{e: e, wake: make(chan struct{}, 1), answers: make(chan flushed, 4), seen: map[int64]int64{}, room: map[int64]int64{}}
}

// put queues a push, or refuses it because the lane has ended.
func (l *flushLane) put(p *push) {
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.pending = append(l.pending, p)
	}
	first := len(l.pending) == 1
	l.mu.Unlock()
	switch {
	case closed:
		l.e.finish(p, ErrDraining)
	case first:
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// run commits until ctx ends, then refuses what is left.
func (l *flushLane) run(ctx context.Context) error {
	answered := make(chan struct{})
	go func() { // ends when answers is closed; awaited below
		defer close(answered)
		l.answer()
	}()
	defer func() {
		close(l.answers)
		<-answered
	}()
	for {
		if batch := l.take(); len(batch) > 0 {
			l.commit(l.e.base, batch) //nolint:contextcheck // what is in flight when ctx ends is finished
			continue
		}
		select {
		case <-l.wake:
		case <-ctx.Done():
			l.close()
			return nil
		}
	}
}

// close refuses what is left and what may still come.
func (l *flushLane) close() {
	l.mu.Lock()
	l.closed = true
	left := l.pending
	l.pending = nil
	l.mu.Unlock()
	l.failAll(l.waiting, ErrDraining)
	l.waiting = nil
	l.failAll(left, ErrDraining)
}

// take returns what goes into the next commit: everything, up to the size of a segment.
func (l *flushLane) take() []*push {
	if l.recheck.Swap(false) {
		l.putBack(l.waiting)
		l.waiting = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	bytes, messages, n := int64(0), 0, 0
	for n < len(l.pending) {
		p := l.pending[n]
		bytes, messages = bytes+p.bytes, messages+len(p.items)
		if n > 0 && (bytes > l.e.cfg.FlushBytes || messages > l.e.cfg.FlushMessages) {
			break
		}
		n++
	}
	batch := l.pending[:n:n]
	l.pending = l.pending[n:]
	if len(l.pending) == 0 {
		l.pending = nil
	}
	return batch
}

// putBack puts pushes into the next batch, in front.
func (l *flushLane) putBack(ps []*push) {
	if len(ps) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = append(ps[:len(ps):len(ps)], l.pending...)
}
