// Package fake is a dispatcher in memory: enough of a queue engine for the surface in front of it to be tested without a database. It keeps the
// contract of the exchange and of the control calls as far as tests/conformance asks; nothing else about it is promised.
package fake

import (
	"context"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/apierr"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Dispatcher is the fake. It is safe for concurrent use.
type Dispatcher struct {
	dispatcherv1.UnimplementedDispatcherServiceServer

	mu       sync.Mutex // guards all below
	queues   map[string]*queue
	received []proto.Message // operations and control requests, in order
	changed  chan struct{}   // closed and replaced when something may be ready
	leases   int
}

// New returns a dispatcher without queues.
func New() *Dispatcher {
	return &Dispatcher{queues: map[string]*queue{}, changed: make(chan struct{})}
}

// Register adds the dispatcher's services to a gRPC server; the interceptors must put the caller into the context (control) as grpcserver does.
func (d *Dispatcher) Register(r grpc.ServiceRegistrar) {
	dispatcherv1.RegisterDispatcherServiceServer(r, d)
	queuev1.RegisterQueueServiceServer(r, &control{d: d})
}

// Serve runs a bare gRPC server on l until ctx ends. The tenant of control calls is read from metadata.
func (d *Dispatcher) Serve(ctx context.Context, l net.Listener) error {
	s := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	d.Register(s)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }() // awaited below
	select {
	case <-ctx.Done():
		s.Stop()
		if err := <-done; err != nil {
			return err
		}
		return nil
	case err := <-done:
		return err
	}
}

// Received returns how many operations and control calls have arrived.
func (d *Dispatcher) Received() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.received)
}

// Last returns the newest operation or control request, nil before the first.
func (d *Dispatcher) Last() proto.Message {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.received) == 0 {
		return nil
	}
	return d.received[len(d.received)-1]
}

// Leased returns how many messages are out in leases.
func (d *Dispatcher) Leased() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, q := range d.queues {
		for _, g := range q.groups {
			n += len(g.leased)
		}
	}
	return n
}

// Exchange serves operations: pops wait, the others are answered at once.
func (d *Dispatcher) Exchange(stream grpc.BidiStreamingServer[dispatcherv1.ExchangeRequest, dispatcherv1.ExchangeResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var sendMu sync.Mutex
	answer := func(res *dispatcherv1.Result) {
		sendMu.Lock()
		defer sendMu.Unlock()
		if stream.Send(&dispatcherv1.ExchangeResponse{Results: []*dispatcherv1.Result{res}}) != nil {
			cancel()
		}
	}
	parked := map[uint64]context.CancelFunc{}
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil
		}
		for _, op := range m.GetOperations() {
			if id := op.GetCancel(); id != 0 {
				if stop := parked[id]; stop != nil {
					stop()
				}
				continue
			}
			d.note(op)
			if op.GetPop() == nil {
				answer(d.apply(op))
				continue
			}
			opCtx, stop := context.WithCancel(ctx)
			parked[op.GetId()] = stop
			wg.Go(func() {
				defer stop()
				answer(d.waitPop(opCtx, op))
			})
		}
	}
}

func (d *Dispatcher) note(m proto.Message) {
	d.mu.Lock()
	d.received = append(d.received, m)
	d.mu.Unlock()
}

func (d *Dispatcher) apply(op *dispatcherv1.Operation) *dispatcherv1.Result {
	d.mu.Lock()
	defer d.mu.Unlock()
	res := &dispatcherv1.Result{Id: op.GetId()}
	var err error
	switch {
	case op.GetPush() != nil:
		res.Result = &dispatcherv1.Result_Push{Push: d.push(op.GetTenant(), op.GetPush())}
	case op.GetAck() != nil:
		var r *queuev1.AckResponse
		r, err = d.ack(op.GetTenant(), op.GetAck())
		res.Result = &dispatcherv1.Result_Ack{Ack: r}
	case op.GetRenew() != nil:
		var r *queuev1.RenewResponse
		r, err = d.renew(op.GetTenant(), op.GetRenew())
		res.Result = &dispatcherv1.Result_Renew{Renew: r}
	case op.GetRelease() != nil:
		var r *queuev1.ReleaseResponse
		r, err = d.release(op.GetTenant(), op.GetRelease())
		res.Result = &dispatcherv1.Result_Release{Release: r}
	}
	if err != nil {
		res.Result = failure(err)
	}
	return res
}

func failure(err error) *dispatcherv1.Result_Error {
	return &dispatcherv1.Result_Error{Error: apierr.From(err).GRPCStatus().Proto()}
}

// dueEvery is how often a waiting pop looks for what came due.
const dueEvery = 20 * time.Millisecond

func (d *Dispatcher) waitPop(ctx context.Context, op *dispatcherv1.Operation) *dispatcherv1.Result {
	res := &dispatcherv1.Result{Id: op.GetId()}
	end := time.NewTimer(op.GetPop().GetWait().AsDuration())
	defer end.Stop()
	for {
		d.mu.Lock()
		resp, err := d.pop(op.GetTenant(), op.GetPop())
		changed := d.changed
		d.mu.Unlock()
		if err != nil {
			res.Result = failure(err)
			return res
		}
		if len(resp.GetDeliveries()) > 0 || len(resp.GetSettled()) > 0 {
			res.Result = &dispatcherv1.Result_Pop{Pop: resp}
			return res
		}
		select {
		case <-changed:
		case <-time.After(dueEvery):
		case <-end.C:
			res.Result = &dispatcherv1.Result_Pop{Pop: resp}
			return res
		case <-ctx.Done():
			res.Result = &dispatcherv1.Result_Error{Error: status.New(codes.Canceled, "cancelled").Proto()}
			return res
		}
	}
}

// wake needs d.mu.
func (d *Dispatcher) wake() {
	close(d.changed)
	d.changed = make(chan struct{})
}
