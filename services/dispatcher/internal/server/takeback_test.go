package server

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/tenant"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/engine"
)

// lastMoment is an engine whose pops are granted just as their client leaves.
type lastMoment struct {
	byHand

	parked chan struct{}
	back   chan string
}

func (e *lastMoment) Pop(ctx context.Context, _ tenant.ID, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	close(e.parked)
	<-ctx.Done()
	return &queuev1.PopResponse{Lease: "lease of " + req.GetQueue(), Deliveries: []*queuev1.Delivery{{}}}, nil
}

func (e *lastMoment) Undelivered(t tenant.ID, queue string, resp *queuev1.PopResponse) {
	e.back <- string(t) + "/" + queue + ": " + resp.GetLease()
}

func (e *lastMoment) Drain() {}

func (*lastMoment) Spool() (engine.SpoolState, bool) { return engine.SpoolState{}, false }

func (e *lastMoment) SettleOnly(context.Context, tenant.ID, *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	return &queuev1.PopResponse{}, nil
}

// oneOperation is the server's side of a stream whose client sends one operation and is cut off.
type oneOperation struct {
	grpc.BidiStreamingServer[dispatcherv1.ExchangeRequest, dispatcherv1.ExchangeResponse]

	ctx  context.Context //nolint:containedctx // a stream has a context
	op   *dispatcherv1.Operation
	sent bool
}

func (s *oneOperation) Context() context.Context { return s.ctx }

func (s *oneOperation) Recv() (*dispatcherv1.ExchangeRequest, error) {
	if !s.sent {
		s.sent = true
		return &dispatcherv1.ExchangeRequest{Operations: []*dispatcherv1.Operation{s.op}}, nil
	}
	<-s.ctx.Done()
	return nil, context.Cause(s.ctx)
}

func (s *oneOperation) Send(*dispatcherv1.ExchangeResponse) error { return context.Cause(s.ctx) }

func TestALeaseWhoseClientLeftAtTheLastMomentIsGivenBack(t *testing.T) {
	t.Parallel()
	e := &lastMoment{parked: make(chan struct{}), back: make(chan string, 1)}
	ctx, leave := context.WithCancel(t.Context())
	s := &oneOperation{ctx: ctx, op: &dispatcherv1.Operation{
		Id: 1, Tenant: "acme", Actor: "ann", Op: &dispatcherv1.Operation_Pop{Pop: &queuev1.PopRequest{Queue: "q"}},
	}}
	ended := make(chan error, 1)
	go func() { ended <- NewExchange(e, nil, nil, calm{}, clock.Real{}, zap.NewNop(), nil).Exchange(s) }()
	<-e.parked

	leave()

	require.ErrorIs(t, <-ended, context.Canceled)
	require.Len(t, e.back, 1)
	require.Equal(t, "acme/q: lease of q", <-e.back)
}
