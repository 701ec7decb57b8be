// Package tailtest is a dispatcher's log in memory, for tests of what subscribes to it.
package tailtest

import (
	"context"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/tenant"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Log is the log of one queue, whose name does not matter. It is safe for concurrent use.
type Log struct {
	dispatcherv1.DispatcherServiceClient

	// Page is how many messages one page has; 4 when 0.
	Page int

	mu      sync.Mutex // guards the rest
	queue   int64
	shards  []shard
	changed chan struct{}
	tails   map[*stream]struct{}
	callers []tenant.Caller
	located []*dispatcherv1.LocateLogRequest
	reads   int
	down    bool
}

type shard struct {
	tail     int64
	messages []*queuev1.SubscribedMessage // from offset 0 on
	removed  map[int64]bool
}

// New returns an empty log of a queue with this id.
func New(queue int64, shards int) *Log {
	return &Log{queue: queue, shards: make([]shard, shards), changed: make(chan struct{}), tails: map[*stream]struct{}{}}
}

// Append adds messages of a partition with headers and returns the offset of the first.
func (l *Log) Append(shard int, partition string, headers map[string]string, payloads ...string) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &l.shards[shard]
	first := int64(len(s.messages))
	for _, p := range payloads {
		at := int64(len(s.messages))
		s.messages = append(s.messages, &queuev1.SubscribedMessage{
			MessageId: fmt.Sprintf("%d-%d", shard, at), Partition: partition, Offset: at, Shard: int32(shard), Payload: []byte(p),
			ContentType: "application/json", Headers: headers,
		})
	}
	l.wake()
	return first
}

// wake needs l.mu.
func (l *Log) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// Trim frees everything of a shard below an offset.
func (l *Log) Trim(shard int, below int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shards[shard].tail = max(l.shards[shard].tail, min(below, int64(len(l.shards[shard].messages))))
}

// Remove deletes one message.
func (l *Log) Remove(shard int, at int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shards[shard].removed == nil {
		l.shards[shard].removed = map[int64]bool{}
	}
	l.shards[shard].removed[at] = true
}

// Delete deletes the queue; under its name there is another one now, whose log is empty.
func (l *Log) Delete() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue++
	for i := range l.shards {
		l.shards[i] = shard{}
	}
	l.wake()
}

// Replace puts another database in the place of the one that was read: its shard ends at head. All tails are lost.
func (l *Log) Replace(shard int, head int64) {
	l.mu.Lock()
	l.shards[shard].messages = l.shards[shard].messages[:head:head]
	l.mu.Unlock()
	l.Break()
}

// replaced needs l.mu.
func (l *Log) replaced(shard int, from int64) error {
	if from <= int64(len(l.shards[shard].messages)) {
		return nil
	}
	return apierr.FailedPrecondition("LOG_REPLACED", "it ends before").GRPCStatus().Err()
}

// Break ends every tail, as a lost dispatcher does.
func (l *Log) Break() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.tails {
		s.cancel()
	}
}

// SetDown makes every call fail, or work again.
func (l *Log) SetDown(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
}

// Heads are where the shards end.
func (l *Log) Heads() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]int64, len(l.shards))
	for i := range l.shards {
		out[i] = int64(len(l.shards[i].messages))
	}
	return out
}

// Messages are all that was ever appended to a shard.
func (l *Log) Messages(shard int) []*queuev1.SubscribedMessage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]*queuev1.SubscribedMessage(nil), l.shards[shard].messages...)
}

// Tails counts the open tails, and the subscribers they serve.
func (l *Log) Tails() (tails int, subscribers int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for s := range l.tails {
		subscribers += s.subscribers
	}
	return len(l.tails), subscribers
}

// Reads counts the pages that were asked for.
func (l *Log) Reads() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reads
}

// Located returns the requests to begin somewhere, and for whom each was.
func (l *Log) Located() ([]*dispatcherv1.LocateLogRequest, []tenant.Caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]*dispatcherv1.LocateLogRequest(nil), l.located...), append([]tenant.Caller(nil), l.callers...)
}

// Ask and Attach make a Log what leads to dispatchers.
func (l *Log) Ask(ctx context.Context, _, _ string, fn func(context.Context, dispatcherv1.DispatcherServiceClient) error) error {
	return fn(ctx, l)
}

// Attach is Ask.
func (l *Log) Attach(ctx context.Context, _, _ string, fn func(context.Context, dispatcherv1.DispatcherServiceClient) error) error {
	return fn(ctx, l)
}

// LocateLog implements the contract; every time is the beginning.
func (l *Log) LocateLog(ctx context.Context, req *dispatcherv1.LocateLogRequest, _ ...grpc.CallOption) (*dispatcherv1.LocateLogResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return nil, status.Error(codes.Unavailable, "down")
	}
	caller, _ := tenant.CallerFrom(ctx)
	l.located, l.callers = append(l.located, req), append(l.callers, caller)
	resp := &dispatcherv1.LocateLogResponse{QueueId: l.queue}
	for _, s := range l.shards {
		b := &dispatcherv1.LogBounds{Tail: s.tail, Head: int64(len(s.messages)), Start: s.tail}
		if req.GetFrom() == "latest" {
			b.Start = b.GetHead()
		}
		resp.Shards = append(resp.Shards, b)
	}
	return resp, nil
}

// ReadLog implements the contract.
func (l *Log) ReadLog(_ context.Context, req *dispatcherv1.ReadLogRequest, _ ...grpc.CallOption) (*dispatcherv1.ReadLogResponse, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	if l.down {
		return nil, status.Error(codes.Unavailable, "down")
	}
	if req.GetQueueId() != l.queue {
		return nil, apierr.NotFound("QUEUE_NOT_FOUND", "gone").GRPCStatus().Err()
	}
	if err := l.replaced(int(req.GetShard()), req.GetFrom()); err != nil {
		return nil, err
	}
	return &dispatcherv1.ReadLogResponse{Page: l.page(int(req.GetShard()), req.GetFrom())}, nil
}

// page needs l.mu.
func (l *Log) page(shard int, from int64) *dispatcherv1.LogPage {
	s := l.shards[shard]
	p := &dispatcherv1.LogPage{Shard: int32(shard), From: from, Next: from}
	if from < s.tail {
		p.Trimmed, p.Next = s.tail, s.tail
	}
	most := l.Page
	if most == 0 {
		most = 4
	}
	for p.GetNext() < int64(len(s.messages)) && len(p.GetMessages()) < most {
		if !s.removed[p.GetNext()] {
			p.Messages = append(p.Messages, s.messages[p.GetNext()])
		}
		p.Next++
	}
	return p
}

// TailLog implements the contract.
func (l *Log) TailLog(ctx context.Context, _ ...grpc.CallOption) (dispatcherv1.DispatcherService_TailLogClient, error) {
	s := &stream{log: l}
	s.ctx, s.cancel = context.WithCancel(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return nil, status.Error(codes.Unavailable, "down")
	}
	l.tails[s] = struct{}{}
	context.AfterFunc(s.ctx, func() { //nolint:contextcheck // it is of ctx
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.tails, s)
	})
	return s, nil
}

// stream is one tail, as its client has it.
type stream struct {
	grpc.ClientStream

	log    *Log
	ctx    context.Context //nolint:containedctx // a stream has one
	cancel context.CancelFunc

	queue       int64 // these are guarded by log.mu
	at          []int64
	subscribers int64
}

func (s *stream) Send(m *dispatcherv1.TailLogRequest) error {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if s.ctx.Err() != nil {
		return io.EOF
	}
	if s.at == nil {
		s.queue, s.at = m.GetQueueId(), append([]int64{}, m.GetOffsets()...)
	}
	s.subscribers = m.GetSubscribers()
	return nil
}

func (s *stream) Recv() (*dispatcherv1.TailLogResponse, error) {
	for {
		m, changed, err := s.next()
		if m != nil || err != nil {
			return m, err
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return nil, status.Error(codes.Unavailable, "lost")
		}
	}
}

func (s *stream) next() (*dispatcherv1.TailLogResponse, <-chan struct{}, error) {
	l := s.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.ctx.Err() != nil || l.down {
		return nil, nil, status.Error(codes.Unavailable, "lost")
	}
	if s.queue != l.queue {
		return nil, nil, apierr.NotFound("QUEUE_NOT_FOUND", "gone").GRPCStatus().Err()
	}
	m := &dispatcherv1.TailLogResponse{}
	for i := range s.at {
		if err := l.replaced(i, s.at[i]); err != nil {
			return nil, nil, err
		}
		if p := l.page(i, s.at[i]); p.GetNext() > s.at[i] {
			s.at[i] = p.GetNext()
			m.Pages = append(m.Pages, p)
		}
	}
	if len(m.GetPages()) == 0 {
		return nil, l.changed, nil
	}
	return m, nil, nil
}
