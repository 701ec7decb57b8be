package grpcserver_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/config"
	"postrider.dev/pkg/grpcclient"
	"postrider.dev/pkg/grpcserver"
	"postrider.dev/pkg/run"
	"postrider.dev/pkg/run/runtest"
	"postrider.dev/pkg/tenant"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = config.Secret("0123456789abcdef")

// service answers with what its functions say.
type service struct {
	testpb.UnimplementedTestServiceServer

	unary  func(ctx context.Context) error
	stream func(stream testpb.TestService_FullDuplexCallServer) error
}

func (s *service) UnaryCall(ctx context.Context, req *testpb.SimpleRequest) (*testpb.SimpleResponse, error) {
	if s.unary == nil {
		return &testpb.SimpleResponse{Payload: req.GetPayload()}, nil
	}
	return &testpb.SimpleResponse{}, s.unary(ctx)
}

func (s *service) FullDuplexCall(stream testpb.TestService_FullDuplexCallServer) error {
	return s.stream(stream)
}

// serve runs a server with svc on addr "mem:test" and returns it with the function that ends it.
func serve(t *testing.T, env run.Env, opts grpcserver.Options, svc *service) (*grpcserver.Server, func() error) {
	t.Helper()
	opts.Service, opts.Listener = "test", "internal"
	if opts.Addr == "" {
		opts.Addr = "mem:test"
	}
	if opts.DrainTimeout == 0 {
		opts.DrainTimeout = time.Minute
	}
	s, err := grpcserver.New(t.Context(), env, opts)
	require.NoError(t, err)
	testpb.RegisterTestServiceServer(s, svc)
	return s, runtest.Go(t, s.Run)
}

func dial(t *testing.T, env run.Env, addr string, secret config.Secret) *grpc.ClientConn {
	t.Helper()
	conn, err := grpcclient.Dial(env, addr, secret)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func call(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := testpb.NewTestServiceClient(conn).UnaryCall(ctx, &testpb.SimpleRequest{}, grpc.WaitForReady(true))
	return err
}

func TestTheSameCallsWorkInMemoryAndOverTCP(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"mem:x", "127.0.0.1:0"} {
		env := runtest.New(t)
		s, stop := serve(t, env, grpcserver.Options{Addr: addr, ClusterSecret: secret}, &service{})
		conn := dial(t, env, s.Addr().String(), secret)
		body := []byte(strings.Repeat("x", 5<<20)) // past grpc's default limit of 4 MiB
		res, err := testpb.NewTestServiceClient(conn).UnaryCall(t.Context(), &testpb.SimpleRequest{Payload: &testpb.Payload{Body: body}})
		require.NoError(t, err)
		require.Equal(t, body, res.GetPayload().GetBody())
		require.NoError(t, stop())
		require.Equal(t, codes.Unavailable, apierr.Code(func() error {
			_, err := testpb.NewTestServiceClient(conn).UnaryCall(shortly(t), &testpb.SimpleRequest{}, grpc.WaitForReady(false))
			return err
		}()))
	}
}

// shortly returns a context for calls that fail anyway.
func shortly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestTheCallerOfAnAuthenticatedPeerArrives(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	var got tenant.Caller
	var ok bool
	var md metadata.MD
	svc := &service{unary: func(ctx context.Context) error {
		got, ok = tenant.CallerFrom(ctx)
		md, _ = metadata.FromIncomingContext(ctx)
		return nil
	}}
	svc.stream = func(stream testpb.TestService_FullDuplexCallServer) error { return svc.unary(stream.Context()) }
	_, stop := serve(t, env, grpcserver.Options{ClusterSecret: secret}, svc)
	conn := dial(t, env, "mem:test", secret)
	want := tenant.Caller{Tenant: "acme", Actor: "schlüssel ci", Role: tenant.Write}

	ctx := metadata.AppendToOutgoingContext(tenant.NewContext(t.Context(), want), "postrider-tenant", "victim", "other", "kept")
	require.NoError(t, call(ctx, conn))
	require.True(t, ok)
	require.Equal(t, want, got, "metadata that was passed on by mistake does not speak")
	require.Empty(t, md.Get("postrider-cluster-secret"), "handlers do not see the secret")
	require.Equal(t, []string{"kept"}, md.Get("other"))

	got = tenant.Caller{}
	stream, err := testpb.NewTestServiceClient(conn).FullDuplexCall(tenant.NewContext(t.Context(), want))
	require.NoError(t, err)
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, want, got)

	require.NoError(t, call(t.Context(), conn))
	require.False(t, ok, "a call for nobody is a call for nobody")
	require.NoError(t, stop())
}

func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	svc := &service{
		unary:  func(context.Context) error { return errors.New("must not be reached") },
		stream: func(testpb.TestService_FullDuplexCallServer) error { return errors.New("must not be reached") },
	}
	serve(t, env, grpcserver.Options{ClusterSecret: secret}, svc)
	for _, given := range []config.Secret{"", "wrong", secret + "x"} {
		conn := dial(t, env, "mem:test", given)
		err := call(t.Context(), conn)
		require.Equal(t, codes.Unauthenticated, apierr.Code(err))
		require.Equal(t, grpcserver.ReasonPeerUnknown, apierr.Reason(err))
		stream, err := testpb.NewTestServiceClient(conn).FullDuplexCall(t.Context())
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, codes.Unauthenticated, apierr.Code(err))

		_, err = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		require.NoError(t, err, "probes need no secret")
	}
	ctx := tenant.NewContext(t.Context(), tenant.Caller{Tenant: "Not Valid"})
	require.Equal(t, grpcserver.ReasonPeerMetadata, apierr.Reason(call(ctx, dial(t, env, "mem:test", secret))))
}

func TestAPublicListenerBelievesNoMetadata(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	svc := &service{unary: func(ctx context.Context) error {
		if _, ok := tenant.CallerFrom(ctx); ok {
			return errors.New("a stranger chose its tenant")
		}
		md, _ := metadata.FromIncomingContext(ctx)
		if len(md.Get("postrider-tenant")) > 0 || len(md.Get("authorization")) != 1 {
			return errors.New("the wrong metadata was removed")
		}
		return nil
	}}
	_, stop := serve(t, env, grpcserver.Options{Public: true}, svc)
	conn := dial(t, env, "mem:test", secret)
	ctx := tenant.NewContext(t.Context(), tenant.Caller{Tenant: "victim", Role: tenant.Admin})
	require.NoError(t, call(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer k"), conn))
	require.NoError(t, stop())
}

func TestUnsafeListenersRefuseToStart(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	for _, opts := range []grpcserver.Options{
		{Service: "x", Listener: "internal", Addr: "0.0.0.0:0"},
		{Service: "x", Listener: "internal", Addr: ":0"},
		{Service: "x", Listener: "public", Addr: "mem:x", Public: true, ClusterSecret: secret},
		{Listener: "internal", Addr: "mem:x"},
		{Service: "x", Addr: "mem:x"},
		{Service: "x", Listener: "internal"},
	} {
		_, err := grpcserver.New(t.Context(), env, opts)
		require.Error(t, err, opts)
	}
	s, err := grpcserver.New(t.Context(), env, grpcserver.Options{Service: "x", Listener: "internal", Addr: "0.0.0.0:0", ClusterSecret: secret})
	require.NoError(t, err)
	s.Close()
}

func TestErrorsAndPanicsLeaveAsStatuses(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	var fail func() error
	svc := &service{unary: func(context.Context) error { return fail() }}
	svc.stream = func(testpb.TestService_FullDuplexCallServer) error { return fail() }
	serve(t, env, grpcserver.Options{}, svc)
	conn := dial(t, env, "mem:test", "")
	both := func(f func() error) []error {
		fail = f
		stream, err := testpb.NewTestServiceClient(conn).FullDuplexCall(t.Context())
		require.NoError(t, err)
		_, err = stream.Recv()
		return []error{call(t.Context(), conn), err}
	}

	stale := apierr.Aborted("STALE_EPOCH", "lost").With("current", 8)
	for _, err := range both(func() error { return stale }) {
		require.Equal(t, stale, apierr.From(err))
	}
	for _, f := range []func() error{
		func() error { return errors.New("password=hunter2") },
		func() error { panic("password=hunter2") },
	} {
		for _, err := range both(f) {
			require.Equal(t, codes.Internal, apierr.Code(err))
			require.NotContains(t, err.Error(), "hunter2")
			require.NotEmpty(t, apierr.From(err).Meta[apierr.MetaErrorID])
		}
	}
	for _, err := range both(func() error { return context.DeadlineExceeded }) {
		require.Equal(t, codes.DeadlineExceeded, apierr.Code(err))
	}
	require.Equal(t, 6, testutil.CollectAndCount(env.Metrics, "postrider_test_grpc_seconds"), "two methods with three codes each")
}

func TestUnaryCallsHaveALongestDuration(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	svc := &service{unary: func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}}
	serve(t, env, grpcserver.Options{MaxDeadline: 20 * time.Millisecond}, svc)
	require.Equal(t, codes.DeadlineExceeded, apierr.Code(call(t.Context(), dial(t, env, "mem:test", ""))))
}

func TestSelfGoesThroughTheInterceptors(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	for _, opts := range []grpcserver.Options{{Addr: "mem:a", Loopback: true, ClusterSecret: secret}, {Addr: "mem:b", Loopback: true, Public: true}} {
		calls := 0
		opts.Unary = []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			calls++
			return next(ctx, req)
		}}
		s, stop := serve(t, env, opts, &service{})
		conn, err := s.Self()
		require.NoError(t, err)
		require.NoError(t, call(t.Context(), conn))
		require.Equal(t, 1, calls)
		require.NoError(t, conn.Close())
		require.NoError(t, stop())
	}
	s, _ := serve(t, env, grpcserver.Options{Addr: "mem:c"}, &service{})
	_, err := s.Self()
	require.Error(t, err)
}
