package grpcserver_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/grpcserver"
	"postrider.dev/pkg/run/runtest"
)

func TestDrainInOrder(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	clk := clock.NewFake(time.Unix(0, 0))
	env.Clock = clk
	var s *grpcserver.Server
	entered := make(chan struct{})
	svc := &service{unary: func(context.Context) error { return nil }}
	svc.stream = func(_ testpb.TestService_FullDuplexCallServer) error {
		close(entered)
		<-s.Draining() // as every long poll must
		return apierr.Unavailable("GOING_AWAY", "resume elsewhere", 0)
	}
	notReady := make(chan struct{})
	front := make(chan struct{})
	opts := grpcserver.Options{
		Service: "test", Listener: "internal", Addr: "mem:test",
		DrainDelay: 5 * time.Second, DrainTimeout: 25 * time.Second, OnDrain: func() { close(notReady) }, StopAfter: front,
	}
	s, err := grpcserver.New(t.Context(), env, opts)
	require.NoError(t, err)
	testpb.RegisterTestServiceServer(s, svc)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()

	conn := dial(t, env, "mem:test", "")
	health := healthpb.NewHealthClient(conn)
	watch, err := health.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	poll, err := testpb.NewTestServiceClient(conn).FullDuplexCall(t.Context())
	require.NoError(t, err)
	<-entered
	status := func() healthpb.HealthCheckResponse_ServingStatus {
		res, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
		return res.GetStatus()
	}
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, status())

	cancel()
	<-notReady
	clk.BlockUntil(1)
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, status(), "1: not serving, and still answering")
	s.SetServing("", true)
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, status(), "nothing brings a draining server back")
	require.NoError(t, call(t.Context(), conn))
	select {
	case <-s.Draining():
		t.Fatal("2 must wait for the delay")
	default:
	}

	clk.Advance(5 * time.Second)
	_, err = poll.Recv()
	require.Equal(t, "GOING_AWAY", apierr.Reason(err), "2: long polls are sent away with an answer")
	require.NoError(t, call(t.Context(), conn), "StopAfter keeps the door open for the gateway")
	close(front)
	require.NoError(t, <-done, "3: nothing holds the end up, not even a health watch")
	for err = nil; err == nil; {
		_, err = watch.Recv()
	}
	require.Equal(t, codes.Canceled, apierr.Code(err))
}

func TestAHandlerThatIgnoresDrainingIsCutOff(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	entered, ended := make(chan struct{}), make(chan struct{})
	svc := &service{unary: func(ctx context.Context) error {
		close(entered)
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	}}
	s, stop := serve(t, env, grpcserver.Options{DrainTimeout: 30 * time.Millisecond}, svc)
	conn := dial(t, env, s.Addr().String(), "")
	answer := make(chan error, 1)
	go func() { answer <- call(t.Context(), conn) }()
	<-entered
	require.ErrorIs(t, stop(), grpcserver.ErrDrainTimeout)
	<-ended
	require.Error(t, <-answer)
}

func TestCloseWithoutRunFreesTheAddress(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	for range 3 {
		s, err := grpcserver.New(t.Context(), env, grpcserver.Options{Service: "x", Listener: "internal", Addr: "mem:x", Loopback: true})
		require.NoError(t, err)
		s.Close()
		require.NoError(t, s.Run(canceled(t)), "Run after Close ends at once")
		require.Error(t, s.Run(t.Context()), "and a second Run is a mistake")
	}
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// TestStartAndStopAtRandomMoments is the stress test that every Run passes: whatever the moment, Run ends, and each call has one answer.
func TestStartAndStopAtRandomMoments(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 500 {
		svc := &service{unary: func(ctx context.Context) error { return ctx.Err() }}
		s, err := grpcserver.New(t.Context(), env, grpcserver.Options{
			Service: "test", Listener: "internal", Addr: fmt.Sprintf("mem:%d", i), Loopback: i%2 == 0, DrainTimeout: time.Minute,
		})
		require.NoError(t, err)
		testpb.RegisterTestServiceServer(s, svc)
		svc.stream = func(testpb.TestService_FullDuplexCallServer) error {
			<-s.Draining()
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.Int64N(int64(3*time.Millisecond))))
		conn := dial(t, env, s.Addr().String(), "")
		var calls sync.WaitGroup
		for range 3 {
			calls.Go(func() {
				for ctx.Err() == nil {
					_ = call(ctx, conn)
				}
			})
			calls.Go(func() {
				stream, err := testpb.NewTestServiceClient(conn).FullDuplexCall(ctx)
				if err == nil {
					_, _ = stream.Recv()
				}
			})
		}
		require.NoError(t, s.Run(ctx))
		calls.Wait()
		cancel()
		require.NoError(t, conn.Close())
	}
}
