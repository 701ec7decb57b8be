package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
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
	bytes    int64 // of the frames of items
	charged  int64 // what it holds of the budget of bytes
	deadline time.Time
	answer   func(*queuev1.PushResponse, error)

	requestKey  bool
	requestHash uint64
	arbiter     int // index of the shard that always keeps the request's key
	keyed       bool
	squeezed    int      // times it was tried beside others for which there was no room
	moves       int      // times its queue turned out to be deleted
	drained     *drained // of the spool; nil: of a caller
	half        bool     // one of two that a push was divided into: it has some of the items, results are shared, and the whole has the budgets
}

// pushItem is one valid message, ready to be written.
type pushItem struct {
	index int // in the request
	shard int // in the queue
	frame segment.Frame
	keyed bool
	key   store.Key
	later later
	told  message.PendingID // of an item of the spool
}

// later is when an item is to be delivered, as it was asked for; the zero value is now.
type later struct {
	pending message.PendingID // minted with the item, so that a flush with an unknown outcome can be looked for
	at      time.Time         // one of the two is set
	after   time.Duration
}

func (l *later) is() bool { return l.after > 0 || !l.at.IsZero() }

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
	p := &push{tenant: t, name: req.GetQueue(), req: req, answer: answer}
	if e.spool == nil && e.inMaintenance() {
		answer(nil, ErrMaintenance)
		return
	}
	if err := e.charge(p); err != nil { // before it waits for anything
		answer(nil, err)
		return
	}
	e.withQueue(ctx, queueName{t, p.name}, func(q *catalog.Queue, err error) {
		if err != nil {
			e.finish(p, e.dbError(err))
			return
		}
		e.pushTo(q, p)
	})
}

// charge takes what a push needs of the budgets: a place among the requests, and the bytes it has before it is encoded.
func (e *Engine) charge(p *push) error {
	if err := e.requests.take(1); err != nil {
		return err
	}
	p.charged = requestBytes(p.req)
	if err := e.pushBytes.take(p.charged); err != nil {
		e.requests.give(1)
		return err
	}
	return nil
}

// itemBytes is about what an item takes beside its text.
const itemBytes = 64

// requestBytes is about what a request takes while it waits.
func requestBytes(req *queuev1.PushRequest) int64 {
	n := len(req.GetIdempotencyKey())
	for _, it := range req.GetItems() {
		n += itemBytes + len(it.GetPartition()) + len(it.GetClientId()) + len(it.GetContentType()) + len(it.GetIdempotencyKey()) + len(it.GetPayload())
		for name, value := range it.GetHeaders() {
			n += len(name) + len(value)
		}
	}
	return int64(n)
}

func (e *Engine) pushTo(q *catalog.Queue, p *push) {
	if e.stopping.Load() {
		e.finish(p, ErrDraining)
		return
	}
	p.deadline = e.clk.Now().Add(e.cfg.Patience)
	if err := e.place(p, q); err != nil || len(p.items) == 0 {
		e.finish(p, err)
		return
	}
	e.flushLane(q.ID).put(p)
}

// place lays a push before a queue, once more if the queue changed or turned out to be another one.
func (e *Engine) place(p *push, q *catalog.Queue) error {
	p.place(q)
	if !p.half {
		e.pushBytes.give(p.charged - p.bytes)
		p.charged = p.bytes
	}
	if p.req.GetResent() && !p.deduplicated() {
		return ErrNotDeduplicated
	}
	return nil
}

// finish answers a push and gives back what it holds of the budgets.
func (e *Engine) finish(p *push, err error) {
	if !p.half {
		e.pushBytes.give(p.charged)
		e.requests.give(1)
	}
	if err != nil {
		p.answer(nil, err)
		return
	}
	p.answer(&queuev1.PushResponse{Results: p.results, Replayed: p.replayed}, nil)
}

// deduplicated says that the queue's memory of keys covers all of the push.
func (p *push) deduplicated() bool {
	if p.queue.Config.IdempotencyWindow <= 0 {
		return false
	}
	return p.req.GetIdempotencyKey() != "" || !slices.ContainsFunc(p.items, func(it pushItem) bool { return !it.keyed })
}

// place validates every item against the queue's options and encodes what passes. Of a half only its own items are looked at: the others are somewhere
// else by now.
func (p *push) place(q *catalog.Queue) {
	items, before := p.req.GetItems(), p.items
	count := len(items)
	if p.half {
		count = len(before)
	} else {
		p.results = make([]*queuev1.PushResult, count)
	}
	p.queue, p.bytes, p.keyed, p.requestKey = q, 0, false, false
	p.items = make([]pushItem, 0, count)
	results := make([]queuev1.PushResult, count)
	messages := make([]message.Message, len(items))
	size := 0
	for n := range count {
		i := n
		if p.half {
			i = before[n].index
		}
		p.results[i] = &results[n]
		m := &messages[i]
		fill(m, items[i])
		if err := checkItem(q, m, items[i]); err != nil {
			results[n].Status, results[n].Error = queuev1.PushStatus_PUSH_STATUS_FAILED, itemError(err)
			continue
		}
		p.items = append(p.items, pushItem{index: i})
		size += message.FrameSize(m)
	}
	p.bytes = int64(size)
	p.encode(messages, size)
	if key := p.req.GetIdempotencyKey(); key != "" && q.Config.IdempotencyWindow > 0 && len(p.items) > 0 && !p.half {
		p.requestKey, p.keyed = true, true
		p.requestHash = q.BodyHash(p.bodyHash(messages))
		p.arbiter = placement.Shard(placement.Hash(key), len(q.Shards))
	}
}

// encode makes the frames, all in one buffer, and the keys.
func (p *push) encode(messages []message.Message, size int) {
	buf := make([]byte, 0, size)
	layout := p.queue.Layout()
	for i := range p.items {
		it := &p.items[i]
		m := &messages[it.index]
		start := len(buf)
		buf = message.AppendFrame(buf, m)
		it.frame = segment.Frame{Hash: p.queue.Hash(m.Partition), Bytes: buf[start:len(buf):len(buf)]}
		it.shard = layout.Shard(int(p.req.GetItems()[it.index].GetPriority()), it.frame.Hash)
		if it.later = laterOf(p.req.GetItems()[it.index]); it.later.is() {
			p.keyed = true // it takes the way on which the database's time is known before anything is written
		}
		if key := p.req.GetItems()[it.index].GetIdempotencyKey(); key != "" && p.queue.Config.IdempotencyWindow > 0 {
			it.keyed, p.keyed = true, true
			it.key = store.Key{
				ID:       p.queue.DedupeKey(p.queue.Shards[it.shard], message.KeyOfMessage, m.Partition, key),
				BodyHash: p.queue.BodyHash(itemHash(m, p.req.GetItems()[it.index])),
			}
		}
	}
}

// bodyHash tells whether the request's key comes again with the same request.
func (p *push) bodyHash(messages []message.Message) uint64 {
	h := sha256.New()
	var b [8]byte
	for i := range messages {
		binary.BigEndian.PutUint64(b[:], itemHash(&messages[i], p.req.GetItems()[i]))
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

func checkItem(q *catalog.Queue, m *message.Message, item *queuev1.PushItem) error {
	if err := q.Config.CheckMessage(m); err != nil {
		return err
	}
	if err := q.Config.CheckPriority(int(item.GetPriority())); err != nil {
		return err
	}
	if err := checkLater(item); err != nil {
		return err
	}
	return queue.CheckOptionalName("idempotency_key", item.GetIdempotencyKey())
}
