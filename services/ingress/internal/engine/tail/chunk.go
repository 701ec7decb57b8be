package tail

import (
	"slices"
	"sync"

	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
)

// chunk is a page of the log in the ring, immutable, shared by all subscriptions that are live.
type chunk struct {
	page   *dispatcherv1.LogPage
	before []int64 // where the tail was before it, by shard
	queue  int64
	bytes  int64
	whole  Batch // its events for a subscription without a filter that was exactly where the tail was
	once   sync.Once
}

func newChunk(queue int64, page *dispatcherv1.LogPage, before []int64) *chunk {
	c := &chunk{page: page, before: slices.Clone(before), queue: queue, bytes: 128}
	for _, m := range page.GetMessages() {
		c.bytes += messageBytes(m)
	}
	return c
}

// messageBytes is about what a message takes.
func messageBytes(m *queuev1.SubscribedMessage) int64 {
	n := 256 + len(m.GetPartition()) + len(m.GetPayload())
	for name, value := range m.GetHeaders() {
		n += len(name) + len(value)
	}
	return int64(n)
}

// all returns the chunk's events as everybody without a filter gets them.
func (c *chunk) all() *Batch {
	c.once.Do(func() {
		c.whole.Events = events(c.queue, c.page, c.before, domain.Filter{})
		c.whole.shared = &encodings{}
	})
	return &c.whole
}

// events returns what a page tells a subscription at a place: the gap, if there is one, and the messages that it has not had and wants.
func events(queue int64, page *dispatcherv1.LogPage, at []int64, f domain.Filter) []*queuev1.SubscribeEvent {
	shard := int(page.GetShard())
	from := at[shard]
	var out []*queuev1.SubscribeEvent
	token := func(next int64) string { return string(domain.AppendResume(nil, queue, at, shard, next)) }
	if to := page.GetTrimmed(); to > from {
		out = append(out, &queuev1.SubscribeEvent{Resume: token(to), Kind: &queuev1.SubscribeEvent_Gap{Gap: &queuev1.SubscribeGap{
			Shard: page.GetShard(), From: from, To: to, Why: queuev1.GapReason_GAP_REASON_RETENTION,
		}}})
	}
	for _, m := range page.GetMessages() {
		if m.GetOffset() >= from && f.Wants(m.GetPartition(), m.GetHeaders()) {
			out = append(out, &queuev1.SubscribeEvent{Resume: token(m.GetOffset() + 1), Kind: &queuev1.SubscribeEvent_Message{Message: m}})
		}
	}
	return out
}

// Encoding is one way in which events are written; see Batch.Encoded.
type Encoding int

// The encodings.
const (
	Protobuf Encoding = iota
	ServerSent
	encodingKinds
)

// Batch is some events in their order.
type Batch struct {
	Events []*queuev1.SubscribeEvent
	// Last says that nothing follows: the last event is closed.
	Last bool

	shared *encodings // nil: they are one subscription's alone
}

type encodings struct {
	once  [encodingKinds]sync.Once
	bytes [encodingKinds][]byte
}

// Encoded returns what write makes of the events. Of events that many get it is made once; the result MUST NOT be changed.
func (b *Batch) Encoded(kind Encoding, write func([]*queuev1.SubscribeEvent) []byte) []byte {
	if b.shared == nil {
		return write(b.Events)
	}
	b.shared.once[kind].Do(func() { b.shared.bytes[kind] = write(b.Events) })
	return b.shared.bytes[kind]
}
