package server_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/grpcserver"
	"postrider.dev/pkg/httpserver"
	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/run"
	"postrider.dev/pkg/tenant"
	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine/answers"
	"postrider.dev/services/ingress/internal/engine/keyring"
	"postrider.dev/services/ingress/internal/engine/tail"
	"postrider.dev/services/ingress/internal/engine/tail/tailtest"
	"postrider.dev/services/ingress/internal/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Keys of the harness, by what they may do.
const (
	adminKey    = "prk_admin_0123456789ABCDEFGHIJKLMNOP"
	writeKey    = "prk_write_0123456789ABCDEFGHIJKLMNOP"
	readKey     = "prk_read_0123456789ABCDEFGHIJKLMNOP"
	strangerKey = "prk_stranger_0123456789ABCDEFGHIJKLMNOP"
	awayKey     = "prk_away_0123456789ABCDEFGHIJKLMNOP"
)

type fakeKeys struct{}

// revoked are keys that were good before; see the test that revokes one.
var revoked sync.Map //nolint:gochecknoglobals // of domain.KeyID

func (fakeKeys) Check(_ context.Context, key domain.Key) (tenant.Caller, error) {
	if _, ended := revoked.Load(key.ID); ended {
		return tenant.Caller{}, keyring.ErrRefused
	}
	callers := map[domain.KeyID]tenant.Caller{
		"admin":    {Tenant: "default", Actor: "key:admin", Role: tenant.Admin},
		"write":    {Tenant: "default", Actor: "key:write", Role: tenant.Write},
		"read":     {Tenant: "default", Actor: "key:read", Role: tenant.Read},
		"passing":  {Tenant: "default", Actor: "key:passing", Role: tenant.Read},
		"stranger": {Tenant: "other", Actor: "key:stranger", Role: tenant.Admin},
	}
	if key.ID == "away" {
		return tenant.Caller{}, keyring.ErrAway
	}
	caller, ok := callers[key.ID]
	if !ok {
		return caller, keyring.ErrRefused
	}
	return caller, nil
}

// fakeExchange records what would be forwarded and answers as told.
type fakeExchange struct {
	mu       sync.Mutex // guards all below
	ops      []*dispatcherv1.Operation
	controls []proto.Message
	callers  []tenant.Caller
	keys     []string // idempotency keys of controls; "again" is answered as a replay
	released []string
	answer   func(op *dispatcherv1.Operation) (*dispatcherv1.Result, error)
	control  func(req, resp proto.Message) error
	parked   chan struct{} // gets a token when a pop waits
	held     chan func()   // gets what answers a push that errHold held back
}

func (x *fakeExchange) forwarded() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.ops) + len(x.controls)
}

func (x *fakeExchange) Do(ctx context.Context, op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
	x.mu.Lock()
	x.ops = append(x.ops, op)
	answer := x.answer
	x.mu.Unlock()
	if answer == nil {
		answer = accept
	}
	res, err := answer(op)
	if errors.Is(err, errWait) {
		x.parked <- struct{}{}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	if errors.Is(err, errLate) {
		x.parked <- struct{}{}
		<-ctx.Done()
		return res, nil
	}
	return res, err
}

var (
	errWait = errors.New("wait for the context")
	errLate = errors.New("answer at the moment the client has gone")
	errHold = errors.New("answer when the test says so")
)

func (x *fakeExchange) Go(op *dispatcherv1.Operation, done func(*dispatcherv1.Result, error)) func() {
	res, err := x.Do(context.Background(), op)
	if errors.Is(err, errHold) {
		x.held <- func() { done(accept(op)) }
		return func() {}
	}
	done(res, err)
	return func() {}
}

func (x *fakeExchange) Release(_, _, _, lease string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.released = append(x.released, lease)
}

func (x *fakeExchange) Usable() int { return 1 }

func (x *fakeExchange) Spools(context.Context) []*adminv1.Spool {
	return []*adminv1.Spool{{Host: "h", Address: "h:1", State: "idle", MaxBytes: 1 << 30}}
}

// fakeMesh is the mesh as the surface shows it.
func fakeMesh(context.Context) *adminv1.Mesh {
	return &adminv1.Mesh{
		Enabled: true, Host: "h", ServerId: "s", Transport: "tcp-mesh", Port: 7403, Secured: true, PeersAlive: 1, MessagesSent: 7,
		Peers: []*adminv1.MeshPeer{{Host: "b", Port: 7403, Connected: true, ResolvedIp: "10.0.0.2", ServerId: "t"}},
	}
}

func (x *fakeExchange) Control(ctx context.Context, _, _ string, _ bool, fn func(context.Context, queuev1.QueueServiceClient) error) error {
	return fn(ctx, queuev1.NewQueueServiceClient(&recorder{x}))
}

type recorder struct{ x *fakeExchange }

func (r *recorder) Invoke(ctx context.Context, _ string, args, reply any, opts ...grpc.CallOption) error {
	caller, _ := tenant.CallerFrom(ctx)
	sent, _ := metadata.FromOutgoingContext(ctx)
	keys := sent.Get(idempotency.Metadata)
	for _, opt := range opts {
		if header, ok := opt.(grpc.HeaderCallOption); ok && slices.Equal(keys, []string{"again"}) {
			*header.HeaderAddr = metadata.Pairs(idempotency.ReplayedMetadata, "true")
		}
	}
	req, _ := args.(proto.Message)
	resp, _ := reply.(proto.Message)
	r.x.mu.Lock()
	r.x.controls = append(r.x.controls, req)
	r.x.callers = append(r.x.callers, caller)
	r.x.keys = append(r.x.keys, keys...)
	control := r.x.control
	r.x.mu.Unlock()
	if control != nil {
		return control(req, resp)
	}
	return nil
}

func (r *recorder) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("no streams here")
}

// accept answers every operation well.
func accept(op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
	res := &dispatcherv1.Result{}
	switch {
	case op.GetPush() != nil:
		push := &queuev1.PushResponse{}
		for i := range op.GetPush().GetItems() {
			push.Results = append(push.Results, &queuev1.PushResult{Status: queuev1.PushStatus_PUSH_STATUS_QUEUED, MessageId: "m", Offset: int64(i)})
		}
		res.Result = &dispatcherv1.Result_Push{Push: push}
	case op.GetPop() != nil:
		res.Result = &dispatcherv1.Result_Pop{Pop: &queuev1.PopResponse{}}
	case op.GetAck() != nil:
		res.Result = &dispatcherv1.Result_Ack{Ack: &queuev1.AckResponse{}}
	case op.GetRenew() != nil:
		res.Result = &dispatcherv1.Result_Renew{Renew: &queuev1.RenewResponse{}}
	case op.GetRelease() != nil:
		res.Result = &dispatcherv1.Result_Release{Release: &queuev1.ReleaseResponse{}}
	}
	return res, nil
}

// surface is a running server with everything behind it faked.
type surface struct {
	t        *testing.T
	exchange *fakeExchange
	env      run.Env
	log      *tailtest.Log // of every queue
	store    *fakeStore
	modes    *fakeModes
	http     *http.Client
	web      string // host:port
	conn     *grpc.ClientConn
	drain    func() <-chan error // begins the drain; the channel gets the end's error
	goAway   func()              // begins it for waiting pops and streams alone: the listeners stay open
	draining chan struct{}       // closed by either
	routes   func() []string     // "METHOD pattern" of every mounted route
	methods  func() []string     // every registered gRPC method
}

func start(t *testing.T) *surface {
	t.Helper()
	return startWith(t, server.Config{Timeout: 10 * time.Second, MaxBodyBytes: domain.RequestBytes, AnswerTimeout: 30 * time.Second})
}

func startWith(t *testing.T, cfg server.Config) *surface {
	t.Helper()
	return startOn(t, cfg, clock.Real{})
}

// startOn is startWith on another clock.
func startOn(t *testing.T, cfg server.Config, clk clock.Clock) *surface {
	t.Helper()
	network := memnet.New()
	env := run.Env{
		Log: zap.NewNop(), Metrics: prometheus.NewRegistry(), Traces: noop.NewTracerProvider(), Clock: clk,
		Listen: network.Listen, Dial: network.Dial,
	}
	s := &surface{t: t, exchange: &fakeExchange{parked: make(chan struct{}, 100), held: make(chan func(), 100)}, log: tailtest.New(1, 1), store: &fakeStore{}, modes: &fakeModes{changed: make(chan struct{})}, draining: make(chan struct{})}
	s.goAway = sync.OnceFunc(func() { close(s.draining) })
	s.serve(env, cfg)
	// HTTP goes over TCP: net/http moves read deadlines about, and a connection in memory may let one that was taken back end the next request.
	s.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return network.Dial(ctx, s.web) }}}
	conn, err := grpc.NewClient("passthrough:///mem:rpc", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(network.Dial),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20)))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	s.conn = conn
	return s
}

func (s *surface) serve(env run.Env, cfg server.Config) {
	t := s.t
	ready := httpserver.NewReadiness()
	web, err := httpserver.New(t.Context(), env, httpserver.Options{
		Service: "ingress", Listener: "public", Addr: "127.0.0.1:0", MaxBodyBytes: server.NoBodyLimit, DrainTimeout: 5 * time.Second,
		OnDrain: func() {
			ready.Drain()
			s.goAway()
		},
	})
	require.NoError(t, err)
	room, err := answers.New(answerRoom, env.Metrics)
	require.NoError(t, err)
	s.env = env
	subs, err := tail.NewHub(s.log, s.draining, env.Clock, env.Log, env.Metrics, tail.Defaults())
	require.NoError(t, err)
	srv, err := server.New(cfg, server.Needs{
		Answers: room, Exchange: s.exchange, Subs: subs, Keys: fakeKeys{}, Store: s.store, KeyChanged: func(domain.KeyID) {}, Ready: ready.Handler(true),
		ModeSet: func(string) {}, Modes: s.modes, Mesh: fakeMesh,
		Draining: s.draining, Clock: env.Clock, Log: env.Log,
	})
	require.NoError(t, err)
	rpc, err := grpcserver.New(t.Context(), env, grpcserver.Options{
		Service: "ingress", Listener: "public", Addr: "mem:rpc", Public: true, Loopback: true, StopAfter: web.Done(), DrainTimeout: 5 * time.Second,
		Unary: srv.Unary(), Stream: []grpc.StreamServerInterceptor{srv.Stream()}, Extra: srv.ServerOptions(),
	})
	require.NoError(t, err)
	s.web = web.Addr().String()
	methods := &registrar{server: rpc}
	srv.Register(methods)
	self, err := rpc.Self()
	require.NoError(t, err)
	require.NoError(t, srv.Mount(t.Context(), web.Router(), self))

	s.methods = func() []string { return methods.names }
	s.routes = func() []string { return routesOf(t, web.Router()) }
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended, finished := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(finished)
		ended <- run.Layers(ctx, []run.Part{{Name: "subscriptions", Run: subs.Run}}, []run.Part{{Name: "web", Run: web.Run}, {Name: "rpc", Run: rpc.Run}})
	}()
	var once sync.Once
	s.drain = func() <-chan error {
		once.Do(cancel)
		return ended
	}
	t.Cleanup(func() {
		cancel()
		s.http.CloseIdleConnections()
		<-finished
		srv.Wait()
		_ = self.Close()
	})
}

// registrar notes the methods of what is registered.
type registrar struct {
	server *grpcserver.Server
	names  []string
}

func (r *registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	for _, m := range desc.Methods {
		r.names = append(r.names, "/"+desc.ServiceName+"/"+m.MethodName)
	}
	for _, m := range desc.Streams {
		r.names = append(r.names, "/"+desc.ServiceName+"/"+m.StreamName)
	}
	r.server.RegisterService(desc, impl)
}

type answer struct {
	status int
	header http.Header
	body   string
}

// request sends one REST request. Header pairs override the defaults: an administrator's key and, with a body, JSON.
func (s *surface) request(method, path, body string, header ...string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, "http://ingress"+path, bytes.NewBufferString(body))
	require.NoError(s.t, err)
	req.Header.Set("Authorization", "Bearer "+adminKey)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i+1] == "" {
			req.Header.Del(header[i])
			continue
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.http.Do(req)
	require.NoError(s.t, err)
	defer resp.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return answer{status: resp.StatusCode, header: resp.Header, body: string(text)}
}

// as returns a context with a key for gRPC calls.
func (s *surface) as(key string) context.Context {
	return metadata.AppendToOutgoingContext(s.t.Context(), "authorization", "Bearer "+key)
}

func t0() time.Time { return time.Date(2030, 1, 2, 3, 4, 5, 678_900_000, time.UTC) }
