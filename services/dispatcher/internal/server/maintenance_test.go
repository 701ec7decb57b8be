package server

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/modes"
	"postrider.dev/pkg/run"
	"postrider.dev/pkg/tenant"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// calm is modes that are all off.
type calm struct{}

func (calm) Observe() (modes.Modes, bool, <-chan struct{}) { return modes.Modes{}, true, nil }

func (calm) Await(context.Context) (modes.Modes, error) { return modes.Modes{}, nil }

// parking is an engine whose pops park until their context ends.
type parking struct {
	byHand

	popped  chan string // queues
	settled chan string
}

func (e *parking) Pop(ctx context.Context, _ tenant.ID, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	e.popped <- req.GetQueue()
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

func (e *parking) SettleOnly(_ context.Context, _ tenant.ID, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	e.settled <- req.GetSettle().GetLease()
	return &queuev1.PopResponse{RestAcked: 2}, nil
}

// wire is a stream that a test plays by hand.
type wire struct {
	grpc.ServerStream

	ctx  context.Context //nolint:containedctx // that is what a stream is
	in   chan *dispatcherv1.Operation
	sent chan *dispatcherv1.Result
}

func (s *wire) Context() context.Context { return s.ctx }

func (s *wire) Recv() (*dispatcherv1.ExchangeRequest, error) {
	select {
	case op := <-s.in:
		return &dispatcherv1.ExchangeRequest{Operations: []*dispatcherv1.Operation{op}}, nil
	case <-s.ctx.Done():
		return nil, context.Cause(s.ctx)
	}
}

func (s *wire) Send(m *dispatcherv1.ExchangeResponse) error {
	for _, r := range m.GetResults() {
		s.sent <- r
	}
	return nil
}

// gate is an exchange over modes that a test sets.
type gate struct {
	engine *parking
	wire   *wire
	table  chan modes.Modes // what the database says; nothing in it: it is away
	watch  *modes.Watch
}

// behindGate runs play against an exchange in a bubble.
func behindGate(t *testing.T, play func(t *testing.T, g *gate)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		g := &gate{
			engine: &parking{popped: make(chan string, 9), settled: make(chan string, 9)},
			wire:   &wire{ctx: ctx, in: make(chan *dispatcherv1.Operation), sent: make(chan *dispatcherv1.Result, 9)},
			table:  make(chan modes.Modes, 1),
		}
		g.watch = modes.New(run.Env{Clock: clock.Real{}, Log: zap.NewNop(), Metrics: prometheus.NewRegistry()}, "dispatcher", time.Minute, func() bool { return true },
			func(context.Context) (modes.Modes, error) {
				select {
				case m := <-g.table:
					g.table <- m
					return m, nil
				default:
					return modes.Modes{}, io.ErrUnexpectedEOF
				}
			})
		watched, exchanged := make(chan error, 1), make(chan error, 1)
		go func() { watched <- g.watch.Run(ctx) }()
		go func() {
			exchanged <- NewExchange(g.engine, nil, nil, g.watch, clock.Real{}, zap.NewNop(), nil).Exchange(g.wire)
		}()
		play(t, g)
		cancel()
		require.NoError(t, <-watched)
		require.ErrorIs(t, <-exchanged, context.Canceled)
	})
}

// set changes the table, hints, and returns when that was read.
func (g *gate) set(m modes.Modes) {
	select {
	case <-g.table:
	default:
	}
	g.table <- m
	g.watch.Look()
	for {
		now, known, changed := g.watch.Observe()
		if known && now == m {
			return
		}
		<-changed
	}
}

func (g *gate) pop(id uint64, req *queuev1.PopRequest, settleOnly bool) {
	g.wire.in <- &dispatcherv1.Operation{Id: id, Tenant: "acme", Actor: "ann", SettleOnly: settleOnly, Op: &dispatcherv1.Operation_Pop{Pop: req}}
}

func popsClosed() modes.Modes {
	return modes.Modes{PopMaintenance: modes.Mode{Enabled: true, Reason: "moving"}}
}

func settlingPop() *queuev1.PopRequest {
	return &queuev1.PopRequest{Queue: "q", Settle: &queuev1.AckRequest{Queue: "q", Lease: "l", AckRest: true}}
}

func TestAFlipAnswersParkedPopsAndBackAgainPopsWait(t *testing.T) {
	t.Parallel()
	behindGate(t, func(t *testing.T, g *gate) {
		g.set(modes.Modes{})
		g.pop(1, &queuev1.PopRequest{Queue: "q"}, false)
		require.Equal(t, "q", <-g.engine.popped)

		g.set(popsClosed())
		parked := (<-g.wire.sent).GetPop()
		g.pop(2, &queuev1.PopRequest{Queue: "q"}, false)
		fresh := (<-g.wire.sent).GetPop()
		g.set(modes.Modes{})
		g.pop(3, &queuev1.PopRequest{Queue: "again"}, false)

		require.Equal(t, "moving", parked.GetPopMaintenance().GetReason())
		require.Equal(t, "moving", fresh.GetPopMaintenance().GetReason())
		require.Equal(t, "again", <-g.engine.popped)
	})
}

func TestInPopMaintenanceAPopStillSettles(t *testing.T) {
	t.Parallel()
	behindGate(t, func(t *testing.T, g *gate) {
		g.set(popsClosed())

		g.pop(1, settlingPop(), false)
		here := (<-g.wire.sent).GetPop()
		g.set(modes.Modes{})
		g.pop(2, settlingPop(), true) // the ingress knows, this dispatcher does not
		there := (<-g.wire.sent).GetPop()

		for _, resp := range []*queuev1.PopResponse{here, there} {
			require.NotNil(t, resp.GetPopMaintenance())
			require.EqualValues(t, 2, resp.GetRestAcked())
			require.Equal(t, "l", <-g.engine.settled)
		}
		require.Empty(t, g.engine.popped)
	})
}

func TestNothingIsHandedOutBeforeTheModesAreKnown(t *testing.T) {
	t.Parallel()
	behindGate(t, func(t *testing.T, g *gate) {
		g.pop(1, &queuev1.PopRequest{Queue: "early"}, false)
		refused := (<-g.wire.sent).GetError() // after modesPatience
		g.pop(2, &queuev1.PopRequest{Queue: "waits"}, false)
		synctest.Wait()
		require.Empty(t, g.engine.popped)
		g.set(modes.Modes{})

		require.Equal(t, "waits", <-g.engine.popped)
		require.Equal(t, ReasonModesUnknown, apierr.FromStatus(status.FromProto(refused)).Reason)
	})
}
