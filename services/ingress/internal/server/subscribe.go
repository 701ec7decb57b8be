package server

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine/tail"
)

// recheckEvery is how often it is asked whether the key of an open subscription is still good.
const recheckEvery = 15 * time.Second

// Subscriptions begins subscriptions; tail.Hub is one.
type Subscriptions interface {
	Subscribe(ctx context.Context, caller tenant.Caller, w tail.Wish) (*tail.Subscription, error)
	// Go runs fn in a goroutine that may outlive its caller a little; false if nobody would wait for it any more.
	Go(fn func()) bool
}

// subscribe validates req and begins the subscription.
func (v *verbs) subscribe(ctx context.Context, req *queuev1.SubscribeRequest) (*tail.Subscription, error) {
	if broken := v.rules.check(req); broken != nil {
		return nil, violation(broken)
	}
	caller, ok := tenant.CallerFrom(ctx)
	if !ok || caller.Tenant == "" {
		return nil, apierr.Unauthenticated(reasonMissingKey, "no tenant is known for this request")
	}
	w := tail.Wish{
		Queue: req.GetQueue(), Create: caller.Role.Allows(tenant.Write),
		Filter: domain.Filter{Headers: req.GetHeaders(), SkipOrigin: req.GetSkipOrigin(), Partitions: map[string]bool{}},
	}
	for _, p := range req.GetPartitions() {
		w.Filter.Partitions[p] = true
	}
	var err error
	if req.GetResume() != "" {
		w.Position, err = domain.ParseResume(req.GetResume())
	} else {
		w.Position, err = domain.ParseFrom(req.GetFrom())
	}
	if err != nil { // the rules have parsed it
		return nil, apierr.Internal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, v.timeout)
	defer cancel()
	sub, err := v.subs.Subscribe(ctx, caller, w)
	return sub, wireError(err)
}

// pump sends what a subscription is told until it ends; nil means that a closed event was the last thing sent. The subscription is closed then.
func (v *verbs) pump(ctx context.Context, sub *tail.Subscription, send func(*tail.Batch) error) error {
	defer sub.Close()
	checked := v.clk.Now()
	for {
		b, err := sub.Next(ctx)
		if err != nil {
			return err
		}
		if v.clk.Since(checked) >= recheckEvery {
			checked = v.clk.Now()
			if !stillAdmitted(ctx) {
				sub.Rewind()
				b = sub.Closed(queuev1.ClosedReason_CLOSED_REASON_ACCESS_LOST, "the key may not read this queue any more")
			}
		}
		if err := send(b); err != nil || b.Last {
			return err
		}
	}
}

// Subscribe implements the contract over gRPC.
func (s *queueService) Subscribe(req *queuev1.SubscribeRequest, stream grpc.ServerStreamingServer[queuev1.SubscribeResponse]) error {
	sub, err := s.verbs.subscribe(stream.Context(), req)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	stuck := s.verbs.clk.NewTimer(s.verbs.patience) // a send that takes longer is cut off without a word, since no word would get through
	stuck.Stop()
	defer stuck.Stop()
	ended := make(chan error, 1)
	// A send that is stuck ends when this handler has returned, and only then.
	if !s.verbs.subs.Go(func() {
		ended <- s.verbs.pump(ctx, sub, func(b *tail.Batch) error {
			stuck.Reset(s.verbs.patience)
			defer stuck.Stop()
			return stream.SendMsg(encodedFrame(b.Encoded(tail.Protobuf, marshalEvents)))
		})
	}) {
		sub.Close()
		return wireError(tail.ErrStopped)
	}
	select {
	case err := <-ended:
		return err
	case <-stuck.C():
		return apierr.ResourceExhausted(reasonSlow, "nothing was read for "+s.verbs.patience.String()+"; go on with the token of the last event", 0)
	}
}

// marshalEvents is the frame that carries the events.
func marshalEvents(events []*queuev1.SubscribeEvent) []byte {
	frame, err := proto.Marshal(&queuev1.SubscribeResponse{Events: events})
	if err != nil { // what came over the wire is valid
		return nil
	}
	return frame
}
