package server

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/tenant"
	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/engine/answers"
)

// Exchange carries operations to the dispatchers; engine.Exchange is one.
type Exchange interface {
	Do(ctx context.Context, op *dispatcherv1.Operation) (*dispatcherv1.Result, error)
	Go(op *dispatcherv1.Operation, done func(*dispatcherv1.Result, error)) (abandon func())
	Release(tenant, actor, queue, lease string)
	Control(ctx context.Context, tenant, queue string, repeat bool, fn func(context.Context, queuev1.QueueServiceClient) error) error
	Usable() int
	Spools(ctx context.Context) []*adminv1.Spool
}

// verbs is the data plane behind both surfaces: it validates, forwards, and knows nothing of how a request came.
type verbs struct {
	rules    *rules
	exchange Exchange
	modes    Modes
	subs     Subscriptions
	patience time.Duration // how long a send of a subscription may be stuck
	timeout  time.Duration
	clk      clock.Clock
	draining <-chan struct{} // closed when pops must not wait any longer
	answers  *answers.Budget
}

var errDraining = errors.New("node drains")

func (v *verbs) operation(ctx context.Context) (*dispatcherv1.Operation, error) {
	caller, ok := tenant.CallerFrom(ctx)
	if !ok || caller.Tenant == "" {
		return nil, apierr.Unauthenticated(reasonMissingKey, "no tenant is known for this request")
	}
	return &dispatcherv1.Operation{Tenant: string(caller.Tenant), Actor: caller.Actor}, nil
}

// do validates req and sends op, bounded by the request timeout on top of what the request itself waits.
func (v *verbs) do(ctx context.Context, req proto.Message, op *dispatcherv1.Operation, wait time.Duration) (*dispatcherv1.Result, error) {
	if broken := v.rules.check(req); broken != nil {
		return nil, violation(broken)
	}
	return v.send(ctx, op, wait)
}

// send is do for a request that is valid.
func (v *verbs) send(ctx context.Context, op *dispatcherv1.Operation, wait time.Duration) (*dispatcherv1.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, v.timeout+wait)
	defer cancel()
	res, err := v.exchange.Do(ctx, op)
	if err != nil {
		return nil, wireError(err)
	}
	if s := res.GetError(); s != nil {
		return nil, statusError(s)
	}
	return res, nil
}

// pop leases messages. When the node drains, a pop that waits is answered at once: empty, but for what it settled. hold is the room of the answer; who
// gets it without an error MUST release it when the answer has left.
func (v *verbs) pop(ctx context.Context, req *queuev1.PopRequest, w weigh) (resp *queuev1.PopResponse, hold *answers.Hold, err error) {
	if settle := req.GetSettle(); settle != nil && settle.GetQueue() == "" {
		settle.Queue = req.GetQueue()
	}
	if broken := v.rules.check(req); broken != nil {
		return nil, nil, violation(broken)
	}
	if m := v.popMaintenance(); m != nil {
		resp, err := v.settleOnly(ctx, req, m)
		return resp, nil, err
	}
	switch {
	case req.GetWait().AsDuration() <= 0:
		return v.sendPop(ctx, req, w)
	case req.GetSettle() == nil:
		return v.waitingPop(ctx, req, w)
	}
	return v.settlingPop(ctx, req, w)
}

// waitingPop is for pops that settle nothing, since what a pop did before it was sent away is not told.
func (v *verbs) waitingPop(ctx context.Context, req *queuev1.PopRequest, w weigh) (*queuev1.PopResponse, *answers.Hold, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := v.onSendAway(cancel)
	defer stop()
	resp, hold, err := v.sendPop(ctx, req, w)
	if errors.Is(err, errDraining) {
		return &queuev1.PopResponse{Draining: true}, nil, nil
	}
	if away, ok := errors.AsType[*maintenanceError](err); ok {
		return &queuev1.PopResponse{PopMaintenance: away.said}, nil, nil
	}
	return resp, hold, err
}

// settlingPop settles with a pop that does not wait and, if that finds nothing, waits with one of its own: whatever ends the wait, a drain or a lost
// dispatcher, the client hears what was settled.
func (v *verbs) settlingPop(ctx context.Context, req *queuev1.PopRequest, w weigh) (*queuev1.PopResponse, *answers.Hold, error) {
	began, wait := v.clk.Now(), req.GetWait().AsDuration()
	req.Wait = nil
	settled, hold, err := v.sendPop(ctx, req, w)
	if err != nil || len(settled.GetDeliveries()) > 0 || settled.GetPopMaintenance() != nil {
		return settled, hold, err
	}
	settled.Draining = false // said by a dispatcher: the wait goes to another
	left := wait - v.clk.Since(began)
	if left <= 0 {
		return settled, hold, nil
	}
	req.Settle, req.Wait = nil, durationpb.New(left)
	resp, more, err := v.waitingPop(ctx, req, w)
	if err != nil {
		return settled, hold, nil //nolint:nilerr // if the trouble lasts the client meets it at its next pop, which settles nothing any more
	}
	hold.Release() // of results alone, which are small
	proto.Merge(resp, settled)
	return resp, more, nil
}

// onSendAway calls end with the reason once pops must not wait any longer, because the node drains or pops are in maintenance, unless stop is called
// before. stop waits for nothing.
func (v *verbs) onSendAway(end func(error)) (stop func()) {
	stopped := make(chan struct{})
	go func() { // ends with the request at the latest
		for {
			_, _, changed := v.modes.Observe()
			if m := v.popMaintenance(); m != nil {
				end(&maintenanceError{said: m})
				return
			}
			select {
			case <-v.draining:
				end(errDraining)
				return
			case <-stopped:
				return
			case <-changed:
			}
		}
	}()
	return func() { close(stopped) }
}

func (v *verbs) ack(ctx context.Context, req *queuev1.AckRequest) (*queuev1.AckResponse, error) {
	op, err := v.operation(ctx)
	if err != nil {
		return nil, err
	}
	op.Op = &dispatcherv1.Operation_Ack{Ack: req}
	res, err := v.do(ctx, req, op, 0)
	return res.GetAck(), err
}

func (v *verbs) renew(ctx context.Context, req *queuev1.RenewRequest) (*queuev1.RenewResponse, error) {
	op, err := v.operation(ctx)
	if err != nil {
		return nil, err
	}
	op.Op = &dispatcherv1.Operation_Renew{Renew: req}
	res, err := v.do(ctx, req, op, 0)
	return res.GetRenew(), err
}

func (v *verbs) release(ctx context.Context, req *queuev1.ReleaseRequest) (*queuev1.ReleaseResponse, error) {
	op, err := v.operation(ctx)
	if err != nil {
		return nil, err
	}
	op.Op = &dispatcherv1.Operation_Release{Release: req}
	res, err := v.do(ctx, req, op, 0)
	return res.GetRelease(), err
}
