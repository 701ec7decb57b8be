package server

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/obs"
	"postrider.dev/pkg/tenant"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

const (
	// exchangeInFlight bounds the operations of one stream that have no result yet, parked pops among them. More are refused.
	exchangeInFlight = 1 << 17
	// drainQuiet is how long a draining stream must have carried nothing before it is closed: the peer has heard of it by then.
	drainQuiet = 250 * time.Millisecond
)

// Exchange is postrider.internal.dispatcher.v1.DispatcherService.
type Exchange struct {
	dispatcherv1.UnsafeDispatcherServiceServer

	engine   Engine
	modes    Modes
	logs     Log
	routes   Routes
	host     string
	clk      clock.Clock
	log      *zap.Logger
	draining <-chan struct{}
}

// NewExchange returns the service. Its streams end soon after draining is closed.
func NewExchange(engine Engine, logs Log, routes Routes, m Modes, clk clock.Clock, log *zap.Logger, draining <-chan struct{}) *Exchange {
	return &Exchange{engine: engine, logs: logs, routes: routes, modes: m, clk: clk, log: log, draining: draining}
}

// On names the host that the service is on.
func (x *Exchange) On(host string) *Exchange {
	x.host = host
	return x
}

// Exchange implements the contract. Pushes begin in the order they came, the other verbs side by side; results leave as they come, gathered while the previous frame is being
// sent. When the stream ends, parked pops are cancelled and leases whose answer was not sent are given back.
func (x *Exchange) Exchange(stream grpc.BidiStreamingServer[dispatcherv1.ExchangeRequest, dispatcherv1.ExchangeResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	s := &exchange{
		engine: x.engine, modes: x.modes, log: x.log, stream: stream, wake: make(chan struct{}, 1), pops: map[uint64]begunPop{},
	}
	received := make(chan error, 1)
	go func() { received <- s.receive(ctx) }() // Recv returns once the handler has, or the client is gone
	err := s.serve(received, x.draining, x)
	cancel() // parked pops end now
	s.close()
	return err
}

// exchange is one stream's life.
type exchange struct {
	engine  Engine
	modes   Modes
	log     *zap.Logger
	stream  grpc.BidiStreamingServer[dispatcherv1.ExchangeRequest, dispatcherv1.ExchangeResponse]
	wake    chan struct{} // holds one token while results wait
	running sync.WaitGroup

	mu       sync.Mutex // guards the rest
	results  []result
	pops     map[uint64]begunPop
	inFlight int
	queued   int    // bytes of results
	begun    uint64 // operations ever begun
	closed   bool
}

// receive begins operations until the client is done (nil) or gone.
func (s *exchange) receive(ctx context.Context) error {
	for {
		frame, err := s.stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, op := range frame.GetOperations() {
			s.begin(ctx, op)
		}
	}
}

// begin starts one operation. It never waits for one.
func (s *exchange) begin(ctx context.Context, op *dispatcherv1.Operation) {
	if cancel := op.GetCancel(); cancel != 0 {
		s.cancel(cancel)
		return
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.begun++
	s.inFlight++
	full := s.inFlight > exchangeInFlight
	unread := op.GetPop() != nil && s.queued >= exchangeQueued
	s.mu.Unlock()
	t, err := tenant.Parse(op.GetTenant())
	switch {
	case err != nil:
		err = apierr.Unauthenticated(ReasonUnauthenticated, "the operation names no tenant").WithCause(err)
	case full:
		err = apierr.ResourceExhausted(ReasonOverloaded, "too many operations in flight on one stream", 100*time.Millisecond)
	case unread:
		err = errUnread()
	default:
		err = validateOperation(op)
	}
	if err != nil {
		s.answer(op, s.failed(op, err))
		return
	}
	switch o := op.GetOp().(type) {
	case *dispatcherv1.Operation_Push:
		s.engine.PushAsync(ctx, t, o.Push, func(resp *queuev1.PushResponse, err error) {
			if err != nil {
				s.answer(op, s.failed(op, err))
				return
			}
			s.answer(op, &dispatcherv1.Result{Id: op.GetId(), Result: &dispatcherv1.Result_Push{Push: resp}})
		})
	case *dispatcherv1.Operation_Pop:
		s.pop(ctx, t, op, o.Pop)
	default:
		s.aside(func() {}, func() { s.answer(op, s.do(ctx, t, op)) })
	}
}

// aside calls note with mu held, and then run in a goroutine that close waits for. Once the stream has ended it does neither.
func (s *exchange) aside(note, run func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		note()
		s.running.Go(run)
	}
}

// begunPop is a pop that is not answered yet.
type begunPop struct {
	end     context.CancelCauseFunc
	settles bool
}

// pop runs a pop that can be cancelled.
func (s *exchange) pop(ctx context.Context, t tenant.ID, op *dispatcherv1.Operation, req *queuev1.PopRequest) {
	ctx, cancel := context.WithCancelCause(ctx)
	id := op.GetId()
	s.aside(func() { s.pops[id] = begunPop{end: cancel, settles: req.GetSettle() != nil} }, func() {
		resp, err := s.popUnlessMaintenance(ctx, t, req, op.GetSettleOnly())
		s.mu.Lock()
		delete(s.pops, id)
		s.mu.Unlock()
		cancel(nil)
		if err != nil {
			s.answer(op, s.failed(op, err))
			return
		}
		s.answer(op, &dispatcherv1.Result{Id: id, Result: &dispatcherv1.Result_Pop{Pop: resp}})
	})
}

func (s *exchange) cancel(id uint64) {
	s.mu.Lock()
	p, ok := s.pops[id]
	s.mu.Unlock()
	if ok {
		p.end(context.Canceled)
	}
}

// do runs one of the short verbs.
func (s *exchange) do(ctx context.Context, t tenant.ID, op *dispatcherv1.Operation) *dispatcherv1.Result {
	r := &dispatcherv1.Result{Id: op.GetId()}
	var err error
	switch o := op.GetOp().(type) {
	case *dispatcherv1.Operation_Ack:
		var resp *queuev1.AckResponse
		resp, err = s.engine.Ack(ctx, t, o.Ack)
		r.Result = &dispatcherv1.Result_Ack{Ack: resp}
	case *dispatcherv1.Operation_Renew:
		var resp *queuev1.RenewResponse
		resp, err = s.engine.Renew(ctx, t, o.Renew)
		r.Result = &dispatcherv1.Result_Renew{Renew: resp}
	case *dispatcherv1.Operation_Release:
		var resp *queuev1.ReleaseResponse
		resp, err = s.engine.Release(ctx, t, o.Release)
		r.Result = &dispatcherv1.Result_Release{Release: resp}
	}
	if err != nil {
		return s.failed(op, err)
	}
	return r
}

// failed is the result of an operation that came to nothing. What the caller is not told of the cause is in the log.
func (s *exchange) failed(op *dispatcherv1.Operation, err error) *dispatcherv1.Result {
	wire := apierr.From(wireError(err))
	if wire.Code == codes.Internal {
		s.log.Error("operation failed", append(obs.Failure(wire), obs.Tenant(tenant.ID(op.GetTenant())), zap.String(obs.KeyActor, op.GetActor()))...)
	}
	st := wire.GRPCStatus().Proto()
	return &dispatcherv1.Result{Id: op.GetId(), Result: &dispatcherv1.Result_Error{Error: &status.Status{
		Code: st.GetCode(), Message: st.GetMessage(), Details: st.GetDetails(),
	}}}
}

// serve sends results until the stream ends: the client is done and everything is answered, or it is gone, or the node drains and nothing is left.
func (s *exchange) serve(received <-chan error, draining <-chan struct{}, x *Exchange) error {
	ctx := s.stream.Context()
	done := false
	var quiet <-chan time.Time
	var seen uint64
	changed := s.heedModes()
	for {
		left, begun, err := s.flush()
		if err != nil {
			return err
		}
		if left == 0 && done {
			return nil
		}
		select {
		case <-s.wake:
		case <-changed:
			changed = s.heedModes()
		case err := <-received:
			if err != nil {
				return err
			}
			done, received = true, nil
		case <-draining:
			draining, seen = nil, begun
			x.engine.Drain()
			if err := s.stream.Send(&dispatcherv1.ExchangeResponse{Draining: true}); err != nil {
				return err
			}
			quiet = x.clk.After(drainQuiet)
		case <-quiet:
			if left == 0 && begun == seen {
				return nil
			}
			seen, quiet = begun, x.clk.After(drainQuiet)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// validateOperation checks an operation. One of a kind that is not known is refused.
func validateOperation(op *dispatcherv1.Operation) error {
	switch o := op.GetOp().(type) {
	case *dispatcherv1.Operation_Push:
		return validatePush(o.Push)
	case *dispatcherv1.Operation_Pop:
		return validatePop(o.Pop)
	case *dispatcherv1.Operation_Ack:
		return validateAck(o.Ack)
	case *dispatcherv1.Operation_Renew:
		return validateRenew(o.Renew)
	case *dispatcherv1.Operation_Release:
		return validateRelease(o.Release)
	}
	return apierr.Unimplemented("OPERATION_UNKNOWN", "this dispatcher does not know the operation")
}
