package server

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/obs"
	"postrider.dev/pkg/tenant"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/engine"
)

// byHand is an Engine that answers what the test says, and remembers for whom it was asked.
type byHand struct {
	err error

	mu      sync.Mutex // guards the rest
	tenants []tenant.ID
	over    bool // nobody may ask any more
	late    int
}

func (e *byHand) note(t tenant.ID) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tenants = append(e.tenants, t)
	if e.over {
		e.late++
	}
	return e.err
}

func (e *byHand) PushAsync(_ context.Context, t tenant.ID, req *queuev1.PushRequest, answer func(*queuev1.PushResponse, error)) {
	answer(&queuev1.PushResponse{Results: make([]*queuev1.PushResult, len(req.GetItems()))}, e.note(t))
}

func (e *byHand) Pop(_ context.Context, t tenant.ID, _ *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	return &queuev1.PopResponse{}, e.note(t)
}

func (e *byHand) Ack(_ context.Context, t tenant.ID, _ *queuev1.AckRequest) (*queuev1.AckResponse, error) {
	return &queuev1.AckResponse{}, e.note(t)
}

func (e *byHand) Renew(_ context.Context, t tenant.ID, _ *queuev1.RenewRequest) (*queuev1.RenewResponse, error) {
	return &queuev1.RenewResponse{}, e.note(t)
}

func (e *byHand) Release(_ context.Context, t tenant.ID, _ *queuev1.ReleaseRequest) (*queuev1.ReleaseResponse, error) {
	return &queuev1.ReleaseResponse{}, e.note(t)
}

func (*byHand) Undelivered(tenant.ID, string, *queuev1.PopResponse) {}

func (*byHand) Drain() {}

func (*byHand) Spool() (engine.SpoolState, bool) { return engine.SpoolState{}, false }

func (e *byHand) SettleOnly(_ context.Context, t tenant.ID, _ *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	return &queuev1.PopResponse{}, e.note(t)
}

// tape is a stream that plays frames and records answers.
type tape struct {
	grpc.ServerStream

	ctx    context.Context //nolint:containedctx // that is what a stream is
	frames chan *dispatcherv1.ExchangeRequest
	sent   []*dispatcherv1.Result
}

func (s *tape) Context() context.Context { return s.ctx }

func (s *tape) Recv() (*dispatcherv1.ExchangeRequest, error) {
	if f, ok := <-s.frames; ok {
		return f, nil
	}
	return nil, io.EOF
}

func (s *tape) Send(m *dispatcherv1.ExchangeResponse) error {
	s.sent = append(s.sent, m.GetResults()...)
	return nil
}

func acks(t tenant.ID, n int) *dispatcherv1.ExchangeRequest {
	f := &dispatcherv1.ExchangeRequest{}
	for i := range n {
		f.Operations = append(f.Operations, &dispatcherv1.Operation{
			Id: uint64(i + 1), Tenant: string(t), Actor: "ann",
			Op: &dispatcherv1.Operation_Ack{Ack: &queuev1.AckRequest{Queue: "q", Lease: "l", AckRest: true}},
		})
	}
	return f
}

func TestAnOperationIsDoneForItsTenant(t *testing.T) {
	t.Parallel()
	engine := &byHand{}
	s := &tape{ctx: t.Context(), frames: make(chan *dispatcherv1.ExchangeRequest, 2)}
	s.frames <- acks("b", 2)
	s.frames <- acks("", 1)
	close(s.frames)

	require.NoError(t, NewExchange(engine, nil, nil, calm{}, clock.Real{}, zap.NewNop(), nil).Exchange(s))

	require.Equal(t, []tenant.ID{"b", "b"}, engine.tenants)
	require.Len(t, s.sent, 3)
	refusals := 0
	for _, r := range s.sent {
		if r.GetError() != nil {
			require.Equal(t, int32(codes.Unauthenticated), r.GetError().GetCode())
			refusals++
		}
	}
	require.Equal(t, 1, refusals)
}

func TestWhatTheCallerIsNotToldIsInTheLogWithItsName(t *testing.T) {
	t.Parallel()
	core, lines := observer.New(zap.ErrorLevel)
	s := &tape{ctx: t.Context(), frames: make(chan *dispatcherv1.ExchangeRequest, 1)}
	s.frames <- acks("a", 1)
	close(s.frames)

	err := NewExchange(&byHand{err: errors.New("a pointer in our own house")}, nil, nil, calm{}, clock.Real{}, zap.New(core), nil).Exchange(s)

	require.NoError(t, err)
	require.Len(t, s.sent, 1)
	require.Equal(t, int32(codes.Internal), s.sent[0].GetError().GetCode())
	require.Equal(t, "internal error", s.sent[0].GetError().GetMessage())
	require.Equal(t, 1, lines.Len())
	fields := lines.All()[0].ContextMap()
	require.Equal(t, "a", fields[obs.KeyTenant])
	require.Equal(t, "ann", fields[obs.KeyActor])
}

// TestNothingBeginsAfterTheEndOfItsStream ends streams while operations still come.
func TestNothingBeginsAfterTheEndOfItsStream(t *testing.T) {
	t.Parallel()
	for range 300 {
		engine := &byHand{}
		ctx, cancel := context.WithCancel(t.Context())
		s := &tape{ctx: ctx, frames: make(chan *dispatcherv1.ExchangeRequest)}
		fed := make(chan struct{})
		go func() {
			defer close(fed)
			for i := range 20 {
				s.frames <- acks("a", 5)
				if i == 10 {
					cancel()
				}
			}
			close(s.frames)
		}()

		err := NewExchange(engine, nil, nil, calm{}, clock.Real{}, zap.NewNop(), nil).Exchange(s)
		engine.mu.Lock()
		engine.over = true
		engine.mu.Unlock()
		select {
		case <-fed:
		case <-clock.Real{}.After(10 * time.Second):
			t.Fatal("the stream is not read to its end")
		}

		if err != nil { // it may have been read to its end first
			require.ErrorIs(t, err, context.Canceled)
		}
		engine.mu.Lock()
		require.Zero(t, engine.late)
		engine.mu.Unlock()
	}
}

// The hot verbs come as operations of an exchange, which are done only if this is nil.

func (*rules) hot(op *dispatcherv1.Operation) error {
	if err := validateOperation(op); err != nil {
		return wireError(err)
	}
	return nil
}

func (r *rules) Push(_ context.Context, req *queuev1.PushRequest) (*queuev1.PushResponse, error) {
	return nil, r.hot(&dispatcherv1.Operation{Op: &dispatcherv1.Operation_Push{Push: req}})
}

func (r *rules) Pop(_ context.Context, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	return nil, r.hot(&dispatcherv1.Operation{Op: &dispatcherv1.Operation_Pop{Pop: req}})
}

func (r *rules) Ack(_ context.Context, req *queuev1.AckRequest) (*queuev1.AckResponse, error) {
	return nil, r.hot(&dispatcherv1.Operation{Op: &dispatcherv1.Operation_Ack{Ack: req}})
}

func (r *rules) Renew(_ context.Context, req *queuev1.RenewRequest) (*queuev1.RenewResponse, error) {
	return nil, r.hot(&dispatcherv1.Operation{Op: &dispatcherv1.Operation_Renew{Renew: req}})
}

func (r *rules) Release(_ context.Context, req *queuev1.ReleaseRequest) (*queuev1.ReleaseResponse, error) {
	return nil, r.hot(&dispatcherv1.Operation{Op: &dispatcherv1.Operation_Release{Release: req}})
}
