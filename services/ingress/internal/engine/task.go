package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// task is one operation on its way: from submission to its only end.
type task struct {
	x     *Exchange
	op    *dispatcherv1.Operation
	bytes int64
	began time.Time
	wait  time.Duration // of a pop
	tries int           // how often it was sent and lost or moved
	out   bool          // it was lost while a dispatcher had it

	mu        sync.Mutex // guards the rest
	done      func(*dispatcherv1.Result, error)
	ended     bool
	abandoned bool
	stream    *stream // where it is now
	id        uint64
	avoid     *peer // where it was last

	lane *lane // of a push that is out; guarded by the engine's lanesMu
}

// maxTries bounds how often an operation is sent: the first time, and again elsewhere.
const maxTries = 3

// end gives the task its result. Only the first call counts.
func (t *task) end(res *dispatcherv1.Result, err error) {
	t.mu.Lock()
	if t.ended {
		t.mu.Unlock()
		return
	}
	t.ended = true
	done, abandoned := t.done, t.abandoned
	t.stream, t.done = nil, nil
	t.mu.Unlock()

	t.x.leave(t)
	if abandoned {
		t.x.giveBack(t.op, res)
		return
	}
	done(res, err)
}

// abandon ends the task for its caller, who has gone: done is not called any more. What it may still lease is given back.
func (t *task) abandon() {
	t.mu.Lock()
	if t.ended || t.abandoned {
		t.mu.Unlock()
		return
	}
	t.abandoned, t.done = true, nil
	s, id := t.stream, t.id
	t.mu.Unlock()
	if s != nil {
		s.withdraw(id)
	}
}

func (t *task) isAbandoned() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.abandoned
}

// finish is called by the stream that carried the task, with a result or with the way it was lost.
func (t *task) finish(res *dispatcherv1.Result, err error) {
	t.x.back(t)
	if err == nil && t.movable(res) {
		err = errMoved
	}
	if err == nil || t.isAbandoned() {
		t.end(res, err)
		return
	}
	if err = t.again(err); err != nil {
		t.end(nil, err)
		return
	}
	if !t.x.submit(t) {
		t.placeSoon()
	}
}

// placeSoon is place in a goroutine of the engine.
func (t *task) placeSoon() {
	if !t.x.background(t.place) {
		t.end(nil, t.unplaced())
	}
}

// movable says that the dispatcher sent an empty-handed pop away because it drains, while the pop's client would still wait. A pop that settled
// something is answered as it is: what it settled must be told.
func (t *task) movable(res *dispatcherv1.Result) bool {
	pop := res.GetPop()
	return pop.GetDraining() && len(pop.GetDeliveries()) == 0 && t.op.GetPop().GetSettle() == nil && t.waitLeft() > 0 && !t.x.stopping()
}

// again prepares the task for another dispatcher, or says why it must not be sent again.
func (t *task) again(err error) error {
	t.tries++
	if errors.Is(err, errBroken) {
		t.out = true
		if !Repeatable(t.op) || t.op.GetPush() != nil && t.tries > 1 {
			return ErrOutcomeUnknown
		}
	}
	if t.tries >= maxTries {
		return t.unplaced()
	}
	t.x.metrics.moved.Inc()
	op := &dispatcherv1.Operation{Tenant: t.op.GetTenant(), Actor: t.op.GetActor(), Op: t.op.GetOp()}
	if push := t.op.GetPush(); push != nil && t.out { // where the queue ignores keys, only the dispatcher knows
		op.Op = &dispatcherv1.Operation_Push{Push: &queuev1.PushRequest{
			Queue: push.GetQueue(), Items: push.GetItems(), IdempotencyKey: push.GetIdempotencyKey(), Resent: true, Require: push.GetRequire(),
		}}
	}
	if pop := t.op.GetPop(); pop != nil {
		moved := proto.CloneOf(pop) // the lost stream may still be reading the first one
		moved.Wait = durationpb.New(t.waitLeft())
		op.Op = &dispatcherv1.Operation_Pop{Pop: moved}
	}
	t.op = op
	return nil
}

func (t *task) waitLeft() time.Duration { return max(t.wait-t.x.clk.Since(t.began), 0) }

// withdrawIfAbandoned takes back a task whose caller went while it was being submitted.
func (t *task) withdrawIfAbandoned() {
	t.mu.Lock()
	s, id := t.stream, t.id
	abandoned := t.abandoned
	t.mu.Unlock()
	if abandoned && s != nil {
		s.withdraw(id)
	}
}

// place waits for a dispatcher, for at most the patience of the engine, and submits the task to it.
func (t *task) place(ctx context.Context) {
	timer := t.x.clk.NewTimer(t.x.cfg.Patience)
	defer timer.Stop()
	for {
		changed := t.x.changes()
		if t.isAbandoned() {
			t.end(nil, context.Canceled)
			return
		}
		if t.x.submit(t) {
			return
		}
		select {
		case <-changed:
		case <-timer.C():
			t.end(nil, t.unplaced())
			return
		case <-ctx.Done():
			t.end(nil, t.unplaced())
			return
		}
	}
}

// unplaced is the error of a task that finds no dispatcher: nothing was done, unless a push was out before.
func (t *task) unplaced() error {
	if t.out && t.op.GetPush() != nil {
		return ErrOutcomeUnknown
	}
	return ErrNoDispatcher
}

// Repeatable reports whether sending op twice has the effect of sending it once. Pops, settlements and lease verbs have: a lease that was not heard of
// expires, a repeated ack is already settled. A push has only with keys.
func Repeatable(op *dispatcherv1.Operation) bool {
	push := op.GetPush()
	return push == nil || HasKeys(push)
}

// HasKeys reports whether idempotency keys cover the whole push.
func HasKeys(push *queuev1.PushRequest) bool {
	if push.GetIdempotencyKey() != "" {
		return true
	}
	for _, it := range push.GetItems() {
		if it.GetIdempotencyKey() == "" {
			return false
		}
	}
	return len(push.GetItems()) > 0
}
