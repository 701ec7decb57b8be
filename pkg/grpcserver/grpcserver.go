// Package grpcserver is the gRPC server of every service: one set of limits, one authentication of peers, one way to report errors, one drain.
//
// New listens at once, so the address is known and clients may connect before the service is built; Run serves and, when its context ends, drains in the order
// of package drain: health NOT_SERVING, DrainDelay, Draining closes, GracefulStop, and at DrainTimeout Stop. Handlers that wait (long polls, streams)
// MUST watch Draining and return, or they hold the process up.
//
// Every error leaves as an apierr status, so nothing internal leaks; a panic becomes one too. There is one exception: a message larger than MaxRecvBytes
// is refused by grpc itself with a plain RESOURCE_EXHAUSTED, without our ErrorInfo. grpc writes that status while it receives, before an interceptor,
// a handler or a codec sees anything, of a stream too, whose RecvMsg answers before it returns; so nobody can say it better, and a higher limit would only
// move the edge, at the price of memory. Clients MUST keep their messages below the limit rather than repeat such a call; the SDK refuses them itself.
package grpcserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/config"
	"postrider.dev/pkg/grpcclient"
	"postrider.dev/pkg/internal/callmeta"
	"postrider.dev/pkg/internal/drain"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/obs"
	"postrider.dev/pkg/run"
)

// ErrDrainTimeout is matched by the error of Run when calls had to be cut off.
var ErrDrainTimeout = drain.ErrTimeout

// Server is a gRPC server that listens. Use New; register services before Run.
type Server struct {
	opts       Options
	log        *zap.Logger // sampled
	clk        clock.Clock
	env        run.Env
	metrics    metrics
	secret     callmeta.Verifier
	propagator propagation.TextMapPropagator // nil: the stats handler does it
	grpc       *grpc.Server
	health     *health.Server
	listener   net.Listener
	self       *memnet.Network // nil without Options.Loopback
	selfLis    net.Listener
	draining   chan struct{}
	goAway     func() // closes draining, once
	running    sync.Once
	inflight   drain.Inflight
}

// New listens on opts.Addr. The caller MUST call Run or Close.
func New(ctx context.Context, env run.Env, opts Options) (*Server, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("grpc server: %w", err)
	}
	m, err := newMetrics(env.Metrics, opts)
	if err != nil {
		return nil, fmt.Errorf("grpc server: %w", err)
	}
	s := &Server{
		opts: opts, log: obs.Sampled(env.Log), clk: env.Clock, env: env, metrics: m,
		secret: callmeta.NewVerifier(opts.ClusterSecret.Reveal()), health: health.NewServer(), draining: make(chan struct{}),
	}
	if !obs.Recording(env.Traces) { // the stats handler costs every message of every stream; passing the context on needs the start alone
		s.propagator = obs.Propagator()
	}
	s.goAway = sync.OnceFunc(func() { close(s.draining) })
	s.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING) // until Run
	s.grpc = grpc.NewServer(s.serverOptions()...)
	healthpb.RegisterHealthServer(s.grpc, endingHealth{s.health, s.draining})
	if s.listener, err = env.Listen(ctx, opts.Addr); err != nil {
		return nil, fmt.Errorf("grpc server: %w", err)
	}
	if opts.Loopback {
		s.self = memnet.New()
		if s.selfLis, err = s.self.Listen(ctx, selfAddr); err != nil {
			return nil, errors.Join(fmt.Errorf("grpc server: %w", err), s.listener.Close())
		}
	}
	return s, nil
}

const selfAddr = memnet.Prefix + "self"

func (s *Server) serverOptions() []grpc.ServerOption {
	opts := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(append([]grpc.UnaryServerInterceptor{s.unary}, s.opts.Unary...)...),
		grpc.ChainStreamInterceptor(append([]grpc.StreamServerInterceptor{s.stream}, s.opts.Stream...)...),
		grpc.MaxRecvMsgSize(s.opts.MaxRecvBytes),
		grpc.MaxHeaderListSize(maxMetadataBytes),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: MinKeepalive, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveEvery, Timeout: keepaliveTimeout}),
	}
	if s.opts.Public {
		opts = append(opts, grpc.MaxConcurrentStreams(publicMaxStreams))
	}
	if s.propagator == nil {
		opts = append(opts, grpc.StatsHandler(otelgrpc.NewServerHandler(
			otelgrpc.WithTracerProvider(s.env.Traces), otelgrpc.WithPropagators(obs.Propagator()))))
	}
	return append(opts, s.opts.Extra...)
}

// RegisterService makes Server a grpc.ServiceRegistrar for generated code. It MUST NOT be called after Run.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s.grpc.RegisterService(desc, impl)
}

// Addr returns the address that the server listens on, with the port that was chosen if none was asked for.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Draining is closed when waiting handlers must return.
func (s *Server) Draining() <-chan struct{} { return s.draining }

// SetServing says over the health service whether the named gRPC service, or the whole server for "", does its job. It has no effect once
// draining has begun.
func (s *Server) SetServing(service string, serving bool) {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if serving {
		status = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus(service, status)
}

// Self returns a new connection of this process to its own server, through memory and all interceptors; a REST gateway stands on it.
// It needs Options.Loopback. The caller closes it.
func (s *Server) Self(opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	if s.self == nil {
		return nil, errors.New("grpc server: Self needs Options.Loopback")
	}
	env := s.env
	env.Dial = s.self.Dial
	secret := s.opts.ClusterSecret
	if s.opts.Public {
		secret = config.Secret("")
	}
	return grpcclient.Dial(env, selfAddr, secret, opts...)
}

// Run serves until ctx ends and then drains. It returns nil when every call in flight was finished. It MUST be called at most once.
func (s *Server) Run(ctx context.Context) error {
	err := errors.New("grpc server: Run was called twice")
	s.running.Do(func() { err = s.run(ctx) })
	return err
}

func (s *Server) run(ctx context.Context) error {
	s.log.Info("serving grpc", zap.String(obs.KeyPart, s.opts.Listener), obs.Addr(s.Addr().String()))
	if !s.opts.Public && !s.opts.ClusterSecret.IsSet() {
		s.log.Warn("no cluster secret: every process of this machine is trusted", zap.String(obs.KeyPart, s.opts.Listener))
	}
	s.SetServing("", true)
	err := drain.Run(ctx, s.clk, s.opts.DrainDelay, s.opts.DrainTimeout, drain.Server{
		Serve:    s.serve,
		NotReady: s.notReady,
		GoAway:   s.goAway,
		Shutdown: s.shutdown,
		Close:    s.grpc.Stop,
		Inflight: &s.inflight,
	})
	if err != nil {
		return fmt.Errorf("grpc %s: %w", s.opts.Listener, err)
	}
	return nil
}

// Close frees the address of a server whose Run was never called; after Run it does nothing more.
func (s *Server) Close() {
	s.goAway()
	s.grpc.Stop()
	_ = s.listener.Close() // Serve has closed it already if it ever ran
	if s.selfLis != nil {
		_ = s.selfLis.Close()
	}
}

func (s *Server) serve() error {
	if s.selfLis == nil {
		return s.grpc.Serve(s.listener)
	}
	inner := make(chan error, 1)
	go func() { inner <- s.grpc.Serve(s.selfLis) }() // ends with the server; awaited below
	err := s.grpc.Serve(s.listener)
	if err != nil {
		_ = s.selfLis.Close()
	}
	return errors.Join(err, <-inner)
}

func (s *Server) notReady() {
	s.health.Shutdown()
	if s.opts.OnDrain != nil {
		s.opts.OnDrain()
	}
}

func (s *Server) shutdown(ctx context.Context) error {
	if s.opts.StopAfter != nil {
		select {
		case <-s.opts.StopAfter:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s.grpc.GracefulStop()
	return nil
}

// endingHealth ends Watch streams when the server drains: a watcher waits for changes forever, and GracefulStop would wait for it.
type endingHealth struct {
	*health.Server

	draining <-chan struct{}
}

func (h endingHealth) Watch(req *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() { // ends with this call
		select {
		case <-h.draining:
			cancel()
		case <-stop:
		}
	}()
	return h.Server.Watch(req, watchStream{stream, ctx})
}

type watchStream struct {
	healthpb.Health_WatchServer

	ctx context.Context //nolint:containedctx // a stream is the one place where gRPC keeps a context.
}

func (s watchStream) Context() context.Context { return s.ctx }
