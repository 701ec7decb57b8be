package grpcclient_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/grpcclient"
	"postrider.dev/pkg/grpcserver"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/run"
	"postrider.dev/pkg/run/runtest"
	"postrider.dev/pkg/tenant"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type service struct {
	testpb.UnimplementedTestServiceServer

	handle func(ctx context.Context) error
}

func (s service) EmptyCall(ctx context.Context, _ *testpb.Empty) (*testpb.Empty, error) {
	return &testpb.Empty{}, s.handle(ctx)
}

func serve(t testing.TB, env run.Env, addr string, handle func(context.Context) error) (*grpcserver.Server, func() error) {
	t.Helper()
	s, err := grpcserver.New(t.Context(), env, grpcserver.Options{Service: "test", Listener: "internal", Addr: addr, DrainTimeout: time.Minute})
	require.NoError(t, err)
	testpb.RegisterTestServiceServer(s, service{handle: handle})
	return s, runtest.Go(t, s.Run)
}

func ok(context.Context) error { return nil }

func call(t testing.TB, conn *grpc.ClientConn, opts ...grpc.CallOption) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := testpb.NewTestServiceClient(conn).EmptyCall(ctx, &testpb.Empty{}, opts...)
	return err
}

func TestAClientMayStartBeforeItsServer(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	conn, err := grpcclient.Dial(env, "mem:late", "")
	require.NoError(t, err)
	conn.Connect()
	_, stop := serve(t, env, "mem:late", ok)
	require.NoError(t, call(t, conn), "dialling in memory waits for the listener, so nothing fails")
	require.NoError(t, conn.Close())
	require.NoError(t, stop())
}

func TestAConnectionComesBack(t *testing.T) {
	t.Parallel()
	for _, addr := range []string{"mem:x", "127.0.0.1:0"} {
		env := runtest.New(t)
		s, stop := serve(t, env, addr, ok)
		addr = s.Addr().String()
		conn, err := grpcclient.Dial(env, addr, "")
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, call(t, conn, grpc.WaitForReady(true)))
			require.NoError(t, stop())
			_, stop = serve(t, env, addr, ok)
		}
		require.NoError(t, call(t, conn, grpc.WaitForReady(true)))
		require.NoError(t, conn.Close())
		require.NoError(t, stop())
	}
}

func TestAnUnreachablePeerIsUnavailableAtOnce(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	l, err := memnet.ListenTCP(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	conn, err := grpcclient.Dial(env, l.Addr().String(), "")
	require.NoError(t, err)
	err = call(t, conn)
	require.Equal(t, codes.Unavailable, apierr.Code(err))
	require.NoError(t, conn.Close())
	_, err = grpcclient.Dial(env, "", "")
	require.Error(t, err)
}

func TestTracesCrossTheHop(t *testing.T) {
	t.Parallel()
	for _, recording := range []bool{false, true} {
		env := runtest.New(t)
		spans := tracetest.NewSpanRecorder()
		if recording {
			env.Traces = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
		}
		var got trace.SpanContext
		_, stop := serve(t, env, "mem:x", func(ctx context.Context) error {
			got = trace.SpanContextFromContext(ctx)
			return nil
		})
		conn, err := grpcclient.Dial(env, "mem:x", "")
		require.NoError(t, err)
		parent := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
		_, err = testpb.NewTestServiceClient(conn).EmptyCall(trace.ContextWithSpanContext(t.Context(), parent), &testpb.Empty{})
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		require.NoError(t, stop())
		require.Equal(t, parent.TraceID(), got.TraceID())
		require.Equal(t, recording, len(spans.Ended()) == 2, "a client and a server span")
	}
}

func Example() {
	network := memnet.New()
	env := newEnv(network)
	ctx, cancel := context.WithCancel(context.Background())
	s, err := grpcserver.New(ctx, env, grpcserver.Options{
		Service: "greeter", Listener: "internal", Addr: "mem:greeter", ClusterSecret: "0123456789abcdef", DrainTimeout: time.Second,
	})
	if err != nil {
		panic(err)
	}
	testpb.RegisterTestServiceServer(s, service{handle: func(ctx context.Context) error {
		id, _ := tenant.FromContext(ctx)
		fmt.Println("called for", id)
		return nil
	}})
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()

	conn, err := grpcclient.Dial(env, "mem:greeter", "0123456789abcdef")
	if err != nil {
		panic(err)
	}
	caller := tenant.NewContext(ctx, tenant.Caller{Tenant: "acme", Actor: "key:ci", Role: tenant.Write})
	_, _ = testpb.NewTestServiceClient(conn).EmptyCall(caller, &testpb.Empty{})

	_ = conn.Close()
	cancel()
	fmt.Println(<-done)
	// Output:
	// called for acme
	// <nil>
}

func BenchmarkUnary(b *testing.B) {
	env := newEnv(memnet.New())
	for _, addr := range []string{"mem:x", "127.0.0.1:0"} {
		b.Run(addr[:3], func(b *testing.B) {
			s, err := grpcserver.New(b.Context(), env, grpcserver.Options{Service: "test", Listener: "internal", Addr: addr, DrainTimeout: time.Minute})
			require.NoError(b, err)
			testpb.RegisterTestServiceServer(s, service{handle: ok})
			runtest.Go(b, s.Run)
			conn, err := grpcclient.Dial(env, s.Addr().String(), "0123456789abcdef")
			require.NoError(b, err)
			client := testpb.NewTestServiceClient(conn)
			ctx := tenant.NewContext(b.Context(), tenant.Caller{Tenant: "acme", Actor: "key:ci", Role: tenant.Write})
			b.ReportAllocs()
			for b.Loop() {
				if _, err := client.EmptyCall(ctx, &testpb.Empty{}, grpc.WaitForReady(true)); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, conn.Close())
		})
	}
}
