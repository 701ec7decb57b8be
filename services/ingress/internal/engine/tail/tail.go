package tail

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/tenant"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Pauses before a tail that was lost is opened again.
const (
	retryMin = 20 * time.Millisecond
	retryMax = time.Second
)

// reasonLogReplaced is the dispatcher's word for a log that ends before an offset.
const reasonLogReplaced = "LOG_REPLACED"

// errNobody ends a tail whose last subscriber has left.
var errNobody = errors.New("no subscriber is left")

// tail is the end of one queue's log, shared by the subscriptions of this node.
type tail struct {
	hub    *Hub
	key    key
	caller tenant.Caller // who opened it; its tenant is what counts
	queue  int64
	counts chan struct{} // holds a token when users has changed

	mu      sync.Mutex // guards the rest
	ring    ring
	users   int64
	changed chan struct{} // closed and replaced when there is something new, or at the end
	over    queuev1.ClosedReason
	left    func() // ends run when nobody is left
}

// newTail returns a tail with one user that begins where the log ends.
func newTail(h *Hub, k key, caller tenant.Caller, log *dispatcherv1.LocateLogResponse) *tail {
	t := &tail{
		hub: h, key: k, caller: caller, queue: log.GetQueueId(), counts: make(chan struct{}, 1), users: 1, changed: make(chan struct{}), left: func() {},
		ring: ring{maxMessages: h.cfg.BufferMessages, maxBytes: h.cfg.BufferBytes},
	}
	for _, b := range log.GetShards() {
		t.ring.end = append(t.ring.end, b.GetHead())
	}
	return t
}

// enter adds a user, unless the tail is ending.
func (t *tail) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.users == 0 || t.over != 0 {
		return false
	}
	t.users++
	t.count()
	return true
}

func (t *tail) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.users--
	t.count()
	if t.users == 0 {
		t.left()
	}
}

// count needs t.mu.
func (t *tail) count() {
	select {
	case t.counts <- struct{}{}:
	default:
	}
}

// run keeps the tail open, at one dispatcher or another, until nobody is left, the queue is gone or ctx ends.
func (t *tail) run(ctx context.Context) {
	defer t.hub.forget(t)
	ctx, cancel := context.WithCancelCause(tenant.NewContext(ctx, t.caller))
	defer cancel(nil)
	t.mu.Lock()
	t.left = func() { cancel(errNobody) }
	if t.users == 0 {
		t.left()
	}
	t.mu.Unlock()
	for pause := retryMin; ctx.Err() == nil; pause = min(2*pause, retryMax) {
		began := t.hub.clk.Now()
		err := t.hub.from.Attach(ctx, string(t.key.tenant), t.key.queue, t.follow)
		if reason := ending(err); reason != 0 {
			t.end(reason)
			return
		}
		if t.hub.clk.Since(began) > retryMax {
			pause = retryMin
		}
		if ctx.Err() == nil {
			t.hub.log.Debug("tail lost", zap.Error(err))
			_ = t.hub.clk.Sleep(ctx, clock.Jitter(clock.Random{}, pause, 0.5)) // the loop looks at ctx
		}
	}
}

// ending returns why there is nothing to follow any more, 0 if there may be.
func ending(err error) queuev1.ClosedReason {
	switch {
	case status.Code(err) == codes.NotFound:
		return queuev1.ClosedReason_CLOSED_REASON_QUEUE_DELETED
	case err != nil && apierr.From(err).Reason == reasonLogReplaced:
		return queuev1.ClosedReason_CLOSED_REASON_LOG_REPLACED
	}
	return 0
}

// follow fills the ring from one dispatcher until that ends or is lost.
func (t *tail) follow(ctx context.Context, d dispatcherv1.DispatcherServiceClient) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := d.TailLog(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	first := &dispatcherv1.TailLogRequest{Queue: t.key.queue, QueueId: t.queue, Offsets: slices.Clone(t.ring.end), Subscribers: t.users}
	t.mu.Unlock()
	if err := stream.Send(first); err != nil {
		_, err = stream.Recv() // says why
		return err
	}
	var counting sync.WaitGroup
	defer counting.Wait()
	defer cancel()
	counting.Go(func() { t.tell(ctx, stream) })
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		t.append(m.GetPages())
	}
}

// tell says how many subscribers there are, whenever that changes.
func (t *tail) tell(ctx context.Context, stream dispatcherv1.DispatcherService_TailLogClient) {
	for {
		select {
		case <-t.counts:
		case <-ctx.Done():
			return
		}
		t.mu.Lock()
		n := t.users
		t.mu.Unlock()
		if stream.Send(&dispatcherv1.TailLogRequest{Subscribers: n}) != nil {
			return // Recv says why
		}
	}
}

// append puts pages into the ring and wakes who waits.
func (t *tail) append(pages []*dispatcherv1.LogPage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range pages {
		if p.GetNext() > p.GetFrom() {
			t.ring.add(newChunk(t.queue, p, t.ring.end))
		}
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// end tells all subscriptions that there is nothing more.
func (t *tail) end(why queuev1.ClosedReason) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = why
	close(t.changed)
	t.changed = make(chan struct{})
}
