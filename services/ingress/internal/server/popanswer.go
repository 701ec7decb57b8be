package server

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/tenant"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine/answers"
)

// weigh says how much memory an answer takes until its client has read it.
type weigh func(proto.Message) int64

// heaviest is how many times its bytes an answer may weigh.
const heaviest = 3

// sendPop sends a pop and takes room for its answer, until hold is released.
//
// The room is taken when the answer comes, not before: see package answers. A pop that is sent while there is little room asks for fewer bytes, so that
// small messages go on as ever. A large message that comes nevertheless is given back uncharged; a pop that may still wait then waits in turn for the
// room that it is known to need, holding nothing, and is sent once more. One that may not is refused, with the time to try again.
func (v *verbs) sendPop(ctx context.Context, req *queuev1.PopRequest, w weigh) (*queuev1.PopResponse, *answers.Hold, error) {
	began, wanted := v.clk.Now(), req.GetMaxBytes()
	req.MaxBytes = v.affordable(wanted)
	resp, err := v.onePop(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	req.MaxBytes = wanted
	weight := w(resp)
	if hold := v.answers.TryTake(weight); hold != nil {
		return resp, hold, nil
	}
	size := proto.Size(resp)
	if v.drop(ctx, req, resp); settledSomething(resp) {
		return resp, v.answers.TryTake(0), nil
	}
	left := req.GetWait().AsDuration() - v.clk.Since(began)
	if left <= 0 {
		return nil, nil, errUnread()
	}
	hold, err := v.turn(ctx, weight, left)
	if err != nil {
		return nil, nil, err
	}
	req.MaxBytes = int32(min(size, domain.RequestBytes))
	req.Wait = durationpb.New(max(req.GetWait().AsDuration()-v.clk.Since(began), 0))
	return v.popWithin(ctx, req, w, hold)
}

// popWithin sends a pop that has room already.
func (v *verbs) popWithin(ctx context.Context, req *queuev1.PopRequest, w weigh, hold *answers.Hold) (*queuev1.PopResponse, *answers.Hold, error) {
	resp, err := v.onePop(ctx, req)
	if err != nil {
		hold.Release()
		return nil, nil, err
	}
	if !hold.Resize(w(resp)) {
		hold.Release()
		v.drop(ctx, req, resp)
		return nil, nil, errUnread()
	}
	return resp, hold, nil
}

func (v *verbs) onePop(ctx context.Context, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	op, err := v.operation(ctx)
	if err != nil {
		return nil, err
	}
	op.Op = &dispatcherv1.Operation_Pop{Pop: req}
	res, err := v.send(ctx, op, req.GetWait().AsDuration())
	return res.GetPop(), err
}

// affordable is how many bytes a pop may ask for now: what it wants, unless there is less room.
func (v *verbs) affordable(wanted int32) int32 {
	want := int64(wanted)
	if want == 0 {
		want = domain.PopBytes
	}
	room := max(v.answers.Free(), answers.FreeBytes) / heaviest
	if want <= room {
		return wanted
	}
	return int32(room)
}

// turn waits for room.
func (v *verbs) turn(ctx context.Context, weight int64, wait time.Duration) (*answers.Hold, error) {
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	hold, err := v.answers.Take(within, weight)
	switch {
	case err == nil:
		return hold, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, errUnread()
}

// drop gives back what a pop leased, for which there is no room, and leaves of its answer what else it says.
func (v *verbs) drop(ctx context.Context, req *queuev1.PopRequest, resp *queuev1.PopResponse) {
	v.answers.Dropped()
	v.undelivered(ctx, req, resp.GetLease())
	resp.Lease, resp.LeaseExpiresAt, resp.LeaseDuration, resp.Deliveries = "", nil, nil, nil
}

// undelivered gives back what a pop leased, because its client could not be told.
func (v *verbs) undelivered(ctx context.Context, req *queuev1.PopRequest, lease string) {
	caller, _ := tenant.CallerFrom(ctx)
	if lease != "" {
		v.exchange.Release(string(caller.Tenant), caller.Actor, req.GetQueue(), lease)
	}
}

func settledSomething(resp *queuev1.PopResponse) bool {
	return len(resp.GetSettled()) > 0 || resp.GetRestAcked() > 0 || resp.GetSettleError() != nil
}

func errUnread() error {
	return apierr.ResourceExhausted(reasonOverloaded, "there is no room for the answer: too many large ones wait for their clients to read them; nothing is leased", retrySoon)
}
