package engine_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/grpcclient"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/run"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dispatcher is a scripted peer: a test reads what arrives and answers by hand.
type dispatcher struct {
	dispatcherv1.UnimplementedDispatcherServiceServer
	healthpb.UnimplementedHealthServer

	t        *testing.T
	addr     string
	network  *memnet.Network
	server   *grpc.Server
	arrived  chan arrival
	auto     bool // answer pushes at once
	finished chan struct{}
	probes   chan struct{} // gets a token, if there is room, when it is asked whether it lives

	mu     sync.Mutex        // guards the rest
	hung   chan struct{}     // not nil: nothing is answered until it is closed
	routes map[string]string // of tenant and queue, with a slash between
	asked  []string          // for which it was asked
}

// FindRoutes answers from routes.
func (d *dispatcher) FindRoutes(ctx context.Context, req *dispatcherv1.FindRoutesRequest) (*dispatcherv1.FindRoutesResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	d.mu.Lock()
	defer d.mu.Unlock()
	resp := &dispatcherv1.FindRoutesResponse{}
	for _, q := range req.GetQueues() {
		key := strings.Join(md.Get("postrider-tenant"), "") + "/" + q
		d.asked = append(d.asked, key)
		if addr := d.routes[key]; addr != "" {
			resp.Routes = append(resp.Routes, &dispatcherv1.FoundRoute{Queue: q, Address: addr})
		}
	}
	return resp, nil
}

// hang is what SIGSTOP does: connections stay and nothing is answered.
func (d *dispatcher) hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hung = make(chan struct{})
}

func (d *dispatcher) unhang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.hung)
	d.hung = nil
}

// probed waits until the dispatcher was asked n times.
func (d *dispatcher) probed(n int) {
	for range n {
		<-d.probes
	}
}

func (d *dispatcher) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	d.mu.Lock()
	hung := d.hung
	d.mu.Unlock()
	if hung != nil {
		select {
		case <-hung:
		case <-ctx.Done():
		}
	}
	select {
	case d.probes <- struct{}{}:
	default:
	}
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_NOT_SERVING}, nil // an answer all the same
}

type arrival struct {
	op     *dispatcherv1.Operation
	answer func(*dispatcherv1.Result)
	drain  func()
}

func (d *dispatcher) Exchange(stream grpc.BidiStreamingServer[dispatcherv1.ExchangeRequest, dispatcherv1.ExchangeResponse]) error {
	var mu sync.Mutex
	send := func(m *dispatcherv1.ExchangeResponse) {
		mu.Lock()
		defer mu.Unlock()
		_ = stream.Send(m) // the test breaks streams
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, op := range m.GetOperations() {
			a := arrival{
				op: op,
				answer: func(res *dispatcherv1.Result) {
					res.Id = op.GetId()
					send(&dispatcherv1.ExchangeResponse{Results: []*dispatcherv1.Result{res}})
				},
				drain: func() { send(&dispatcherv1.ExchangeResponse{Draining: true}) },
			}
			if d.auto && op.GetPush() != nil {
				a.answer(pushed(d.addr))
			}
			d.arrived <- a
		}
	}
}

func (d *dispatcher) start() {
	l, err := d.network.Listen(d.t.Context(), d.addr)
	require.NoError(d.t, err)
	d.server = grpc.NewServer(serverOptions()...)
	d.finished = make(chan struct{})
	dispatcherv1.RegisterDispatcherServiceServer(d.server, d)
	healthpb.RegisterHealthServer(d.server, d)
	go func() {
		defer close(d.finished)
		_ = d.server.Serve(l) // ends by stop
	}()
}

// stop is a crash: every stream breaks at once.
func (d *dispatcher) stop() {
	d.server.Stop()
	<-d.finished
}

func (d *dispatcher) next() arrival {
	d.t.Helper()
	select {
	case a := <-d.arrived:
		return a
	case <-time.After(5 * time.Second):
		d.t.Fatalf("nothing arrives at %s", d.addr)
		return arrival{}
	}
}

func pushed(id string) *dispatcherv1.Result {
	return &dispatcherv1.Result{Result: &dispatcherv1.Result_Push{Push: &queuev1.PushResponse{Results: []*queuev1.PushResult{{MessageId: id}}}}}
}

func popped(lease string) *dispatcherv1.Result {
	return &dispatcherv1.Result{Result: &dispatcherv1.Result_Pop{Pop: &queuev1.PopResponse{Lease: lease, Deliveries: []*queuev1.Delivery{{MessageId: "m"}}}}}
}

func push(queue, key, payload string) *dispatcherv1.Operation {
	return &dispatcherv1.Operation{Tenant: "t", Op: &dispatcherv1.Operation_Push{Push: &queuev1.PushRequest{
		Queue: queue, Items: []*queuev1.PushItem{{Payload: []byte(payload), IdempotencyKey: key}},
	}}}
}

func pop() *dispatcherv1.Operation {
	return &dispatcherv1.Operation{Tenant: "t", Op: &dispatcherv1.Operation_Pop{Pop: &queuev1.PopRequest{Queue: "q", Wait: durationpb.New(time.Minute)}}}
}

// bundle is an exchange with two scripted dispatchers, the first of them the own host's.
type bundle struct {
	*engine.Exchange

	own, other *dispatcher
	stop       context.CancelFunc
	ended      chan error
}

func setup(t *testing.T, change ...func(*engine.Config)) *bundle {
	t.Helper()
	cfg := engine.Config{Streams: 2, MaxOps: 1000, MaxBytes: 1 << 20, Patience: 2 * time.Second, RouteRefresh: time.Hour}
	for _, c := range change {
		c(&cfg)
	}
	network := memnet.New()
	env := run.Env{Log: zap.NewNop(), Traces: noop.NewTracerProvider(), Clock: clock.Real{}, Dial: network.Dial, Listen: network.Listen}
	x, err := engine.New(func(addr string) (*grpc.ClientConn, error) { return grpcclient.Dial(env, addr, "") }, clock.Real{}, zap.NewNop(), prometheus.NewRegistry(), cfg)
	require.NoError(t, err)
	b := &bundle{Exchange: x, ended: make(chan error, 1)}
	for i, d := range []**dispatcher{&b.own, &b.other} {
		*d = &dispatcher{t: t, addr: "mem:d" + strconv.Itoa(i), network: network, arrived: make(chan arrival, 10_000), probes: make(chan struct{}, 1)}
		(*d).start()
		t.Cleanup(func() { (*d).stop() })
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	b.stop = cancel
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		b.ended <- x.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-finished
	})
	x.SetTargets([]engine.Target{{Addr: "mem:d0", Own: true}, {Addr: "mem:d1"}})
	b.awaitUsable(t, 2)
	return b
}

func (b *bundle) awaitUsable(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return b.Usable() == n }, 5*time.Second, time.Millisecond)
}

type outcome struct {
	res *dispatcherv1.Result
	err error
}

// do sends in the background.
func (b *bundle) do(ctx context.Context, op *dispatcherv1.Operation) chan outcome {
	out := make(chan outcome, 1)
	go func() {
		res, err := b.Do(ctx, op)
		out <- outcome{res, err}
	}()
	return out
}
