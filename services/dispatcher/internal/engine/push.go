package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/placement"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	// DefaultPartition is where messages go that name no partition.
	DefaultPartition = "default"
	// DefaultContentType is that of payloads that do not say.
	DefaultContentType = "application/octet-stream"
)

// push is one request on its way to a commit. Until it is answered it belongs to one goroutine at a time: the caller's, then its lane's.
type push struct {
	tenant   tenant.ID
	name     string
	req      *queuev1.PushRequest
	queue    *catalog.Queue
	items    []pushItem // those that passed validation, in the order of the request
	results  []*queuev1.PushResult
	replayed bool
	bytes    int64
	deadline time.Time
	answer   func(*queuev1.PushResponse, error)

	requestKey  bool
	requestHash uint64
	arbiter     int // index of the shard that always keeps the request's key
	keyed       bool
	moves       int  // times its queue turned out to be deleted
	half        bool // part of a push that is being bisected: the whole has the budgets
}

// pushItem is one valid message, ready to be written.
type pushItem struct {
	index int // in the request
	shard int // in the queue
	frame segment.Frame
	keyed bool
	key   store.Key
}

// Push appends the items of a request. See PushAsync.
func (e *Engine) Push(ctx context.Context, t tenant.ID, req *queuev1.PushRequest) (*queuev1.PushResponse, error) {
	type answer struct {
		resp *queuev1.PushResponse
		err  error
	}
	done := make(chan answer, 1)
	e.PushAsync(ctx, t, req, func(resp *queuev1.PushResponse, err error) { done <- answer{resp, err} })
	select {
	case a := <-done:
		return a.resp, a.err
	case <-ctx.Done():
		return nil, context.Cause(ctx) // the commit goes on: its outcome is unknown to the caller
	}
}

// PushAsync appends the items of a request and calls answer exactly once, soon, from any goroutine; answer MUST NOT block. When answer gets a nil error,
// what it calls queued is durable. Items that break a rule are answered with their error and harm no other. Requests for one queue that are made one after
// the other are appended in that order. ctx bounds the look-up of the queue only: a push that waits for its commit cannot be taken back.
func (e *Engine) PushAsync(ctx context.Context, t tenant.ID, req *queuev1.PushRequest, answer func(*queuev1.PushResponse, error)) {
	e.withQueue(ctx, queueName{t, req.GetQueue()}, func(q *catalog.Queue, err error) {
		if err != nil {
			answer(nil, e.dbError(err))
			return
		}
		e.pushTo(q, t, req, answer)
	})
}

type queueName struct {
	tenant tenant.ID
	name   string
}

// arrivals keeps callers of one queue in their order while the queue is looked up.
type arrivals struct {
	count   atomic.Int64 // queues being looked up
	mu      sync.Mutex   // guards waiting
	waiting map[queueName][]func(*catalog.Queue, error)
}

// withQueue calls fn with the queue, made if need be: at once if it is cached, else when it was read, after all earlier callers.
func (e *Engine) withQueue(ctx context.Context, name queueName, fn func(*catalog.Queue, error)) {
	a := &e.arrivals
	if a.count.Load() == 0 {
		if q, ok := e.catalog.Cached(name.tenant, name.name); ok {
			fn(q, nil)
			return
		}
	}
	a.mu.Lock()
	if queue, busy := a.waiting[name]; busy {
		a.waiting[name] = append(queue, fn)
		a.mu.Unlock()
		return
	}
	if q, ok := e.catalog.Cached(name.tenant, name.name); ok {
		a.mu.Unlock()
		fn(q, nil)
		return
	}
	a.waiting[name] = []func(*catalog.Queue, error){fn}
	a.count.Add(1)
	a.mu.Unlock()
	if !e.background(func() { e.resolve(ctx, name) }) {
		e.serveArrivals(name, nil, ErrDraining)
	}
}

// resolve reads a queue for all who wait for it.
func (e *Engine) resolve(ctx context.Context, name queueName) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.StatementTimeout) // it is read for others too
	defer cancel()
	q, err := e.catalog.Queue(ctx, name.tenant, name.name, true)
	e.serveArrivals(name, q, err)
}

// serveArrivals calls all who wait, those who come meanwhile too.
func (e *Engine) serveArrivals(name queueName, q *catalog.Queue, err error) {
	a := &e.arrivals
	for {
		a.mu.Lock()
		fns := a.waiting[name]
		if len(fns) == 0 {
			delete(a.waiting, name)
			a.count.Add(-1)
			a.mu.Unlock()
			return
		}
		a.waiting[name] = []func(*catalog.Queue, error){}
		a.mu.Unlock()
		for _, fn := range fns {
			fn(q, err)
		}
	}
}

func (e *Engine) pushTo(q *catalog.Queue, t tenant.ID, req *queuev1.PushRequest, answer func(*queuev1.PushResponse, error)) {
	if e.stopping.Load() {
		answer(nil, ErrDraining)
		return
	}
	p := &push{tenant: t, name: req.GetQueue(), req: req, answer: answer, deadline: e.clk.Now().Add(e.cfg.Patience)}
	p.place(q)
	if len(p.items) == 0 && !p.requestKey {
		p.reply(nil)
		return
	}
	if err := e.pushBytes.take(p.bytes); err != nil {
		answer(nil, err)
		return
	}
	if err := e.requests.take(1); err != nil {
		e.pushBytes.give(p.bytes)
		answer(nil, err)
		return
	}
	e.flushLane(q.ID).put(p)
}

// reply answers and lets go of everything. The budgets are the lane's business.
func (p *push) reply(err error) {
	if err != nil {
		p.answer(nil, err)
		return
	}
	p.answer(&queuev1.PushResponse{Results: p.results, Replayed: p.replayed}, nil)
}

// place validates every item against the queue's options and encodes what passes. It may be called again when the queue turned out to be another one.
func (p *push) place(q *catalog.Queue) {
	p.queue, p.bytes, p.keyed = q, 0, false
	items := p.req.GetItems()
	p.items = make([]pushItem, 0, len(items))
	results := make([]queuev1.PushResult, len(items))
	p.results = make([]*queuev1.PushResult, len(items))
	messages := make([]message.Message, len(items))
	size := 0
	for i, item := range items {
		p.results[i] = &results[i]
		m := &messages[i]
		fill(m, item)
		if err := check(q.Config, m, item); err != nil {
			results[i].Status, results[i].Error = queuev1.PushStatus_PUSH_STATUS_FAILED, itemError(err)
			continue
		}
		p.items = append(p.items, pushItem{index: i})
		size += message.FrameSize(m)
	}
	p.bytes = int64(size)
	p.encode(messages, size)
	if key := p.req.GetIdempotencyKey(); key != "" && q.Config.IdempotencyWindow > 0 && len(p.items) > 0 {
		p.requestKey, p.keyed = true, true
		p.requestHash = p.bodyHash(messages)
		p.arbiter = placement.Shard(placement.Hash(key), len(q.Shards))
	}
}

// encode makes the frames, all in one buffer, and the keys.
func (p *push) encode(messages []message.Message, size int) {
	buf := make([]byte, 0, size)
	for i := range p.items {
		it := &p.items[i]
		m := &messages[it.index]
		start := len(buf)
		buf = message.AppendFrame(buf, m)
		it.frame = segment.Frame{Hash: placement.Hash(m.Partition), Bytes: buf[start:len(buf):len(buf)]}
		it.shard = placement.Shard(it.frame.Hash, len(p.queue.Shards))
		if key := p.req.GetItems()[it.index].GetIdempotencyKey(); key != "" && p.queue.Config.IdempotencyWindow > 0 {
			it.keyed, p.keyed = true, true
			it.key = store.Key{
				ID:       store.KeyID(message.DedupeKey(p.queue.Shards[it.shard], message.KeyOfMessage, m.Partition, key)),
				BodyHash: uint64(m.BodyHash()),
			}
		}
	}
}

// bodyHash tells whether the request's key comes again with the same request.
func (p *push) bodyHash(messages []message.Message) uint64 {
	h := sha256.New()
	var b [8]byte
	for i := range messages {
		binary.BigEndian.PutUint64(b[:], uint64(messages[i].BodyHash()))
		h.Write(b[:])
		h.Write([]byte(p.req.GetItems()[i].GetIdempotencyKey()))
		h.Write([]byte{0})
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// fill makes a message of an item; headers are sorted, so that the same item always has the same bytes. The payload is not copied.
func fill(m *message.Message, item *queuev1.PushItem) {
	*m = message.Message{
		Partition: item.GetPartition(), ClientID: item.GetClientId(), ContentType: item.GetContentType(), Payload: item.GetPayload(),
	}
	if m.Partition == "" {
		m.Partition = DefaultPartition
	}
	if m.ContentType == "" {
		m.ContentType = DefaultContentType
	}
	if len(item.GetHeaders()) > 0 {
		m.Headers = make([]message.Header, 0, len(item.GetHeaders()))
		for name, value := range item.GetHeaders() {
			m.Headers = append(m.Headers, message.Header{Name: name, Value: value})
		}
		slices.SortFunc(m.Headers, func(a, b message.Header) int { return strings.Compare(a.Name, b.Name) })
	}
}

func check(c queue.Config, m *message.Message, item *queuev1.PushItem) error {
	if err := c.CheckMessage(m); err != nil {
		return err
	}
	return queue.CheckOptionalName("idempotency_key", item.GetIdempotencyKey())
}

// flushLane gathers pushes while the previous commit is in flight.
type flushLane struct {
	e       *Engine
	wake    chan struct{}
	answers chan flushed
	seen    map[int64]int64 // newest config_version seen, by queue; belongs to run

	mu      sync.Mutex // guards the rest
	pending []*push
	closed  bool
}

func newFlushLane(e *Engine) *flushLane {
	return &flushLane{e: e, wake: make(chan struct{}, 1), answers: make(chan flushed, 4), seen: map[int64]int64{}}
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
		l.finish(p, ErrDraining)
	case first:
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// finish answers a push that came through the budgets.
func (l *flushLane) finish(p *push, err error) {
	if !p.half {
		l.e.pushBytes.give(p.bytes)
		l.e.requests.give(1)
	}
	p.reply(err)
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
	l.failAll(left, ErrDraining)
}

// take returns what goes into the next commit: everything, up to the size of a segment.
func (l *flushLane) take() []*push {
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

// putBack puts pushes that must not go together with others of their batch into the next one, in front.
func (l *flushLane) putBack(ps []*push) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = append(ps[:len(ps):len(ps)], l.pending...)
}
