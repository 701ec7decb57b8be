package server

import (
	"context"
	"io"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// dial serves the service in memory to a caller of tenant a and opens a push stream.
func (b *bench) dial() queuev1.QueueService_PushStreamClient {
	b.t.Helper()
	return b.dialWith(b.t.Context())
}

func (b *bench) dialWith(ctx context.Context) queuev1.QueueService_PushStreamClient {
	b.t.Helper()
	network := memnet.New()
	lis, err := network.Listen(b.t.Context(), "mem:queues")
	require.NoError(b.t, err)
	srv := grpc.NewServer(grpc.StreamInterceptor(func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		return handler(srv, asCaller{ss, tenant.NewContext(ss.Context(), tenant.Caller{Tenant: "a", Actor: "ann"})})
	}))
	queuev1.RegisterQueueServiceServer(srv, b.Queues)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := srv.Serve(lis); err != nil {
			b.t.Error(err)
		}
	})
	b.t.Cleanup(func() { srv.Stop(); wg.Wait() })
	conn, err := grpc.NewClient("passthrough:///mem:queues", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(network.Dial))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { require.NoError(b.t, conn.Close()) })
	stream, err := queuev1.NewQueueServiceClient(conn).PushStream(ctx)
	require.NoError(b.t, err)
	return stream
}

type asCaller struct {
	grpc.ServerStream

	ctx context.Context //nolint:containedctx // that is what a stream is
}

func (s asCaller) Context() context.Context { return s.ctx }

func frame(ids ...uint64) *queuev1.PushStreamRequest {
	f := &queuev1.PushStreamRequest{}
	for _, id := range ids {
		f.Entries = append(f.Entries, &queuev1.PushStreamRequest_Entry{
			RequestId: id, Request: &queuev1.PushRequest{Queue: "q", Items: make([]*queuev1.PushItem, 1)},
		})
	}
	return f
}

// answers reads until n requests are answered.
func answers(t *testing.T, s queuev1.QueueService_PushStreamClient, n int) map[uint64]*queuev1.PushStreamResponse_Entry {
	t.Helper()
	out := map[uint64]*queuev1.PushStreamResponse_Entry{}
	for len(out) < n {
		f, err := s.Recv()
		require.NoError(t, err)
		for _, e := range f.GetEntries() {
			require.NotContains(t, out, e.GetRequestId(), "answered twice")
			out[e.GetRequestId()] = e
		}
	}
	return out
}

func TestEachRequestOfAStreamHasItsOwnFate(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := b.dial()

	f := frame(1, 2, 3)
	f.Entries[1].Request.Queue = ""
	require.NoError(t, s.Send(f))
	got := answers(t, s, 3)
	require.Len(t, got[1].GetResponse().GetResults(), 1)
	require.Nil(t, got[2].GetResponse())
	require.Equal(t, "NAME_EMPTY", got[2].GetError().GetCode())
	require.Equal(t, "queue", got[2].GetError().GetField())
	require.Equal(t, int32(codes.InvalidArgument), got[2].GetErrorStatus())
	require.Len(t, got[3].GetResponse().GetResults(), 1)

	require.NoError(t, s.CloseSend())
	_, err := s.Recv()
	require.ErrorIs(t, err, io.EOF)
}

func TestStreamEndsOnlyWhenEverythingIsAnswered(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.engine.hold, b.engine.asked = true, make(chan struct{}, 10)
	s := b.dial()
	require.NoError(t, s.Send(frame(1, 2)))
	require.NoError(t, s.CloseSend())
	<-b.engine.asked
	<-b.engine.asked
	b.engine.release()
	require.Len(t, answers(t, s, 2), 2)
	_, err := s.Recv()
	require.ErrorIs(t, err, io.EOF)
}

func TestDrainingStreamAnswersWhatItAcceptedAndGoesAway(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.engine.hold, b.engine.asked = true, make(chan struct{}, 10)
	s := b.dial()
	require.NoError(t, s.Send(frame(1)))
	<-b.engine.asked
	close(b.drain)
	b.engine.release()
	require.Len(t, answers(t, s, 1), 1)
	_, err := s.Recv()
	refused(t, err, codes.Unavailable, "DRAINING")
}

func TestStreamOfAClientThatLeftIsForgotten(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.engine.hold, b.engine.asked = true, make(chan struct{}, 10)
	ctx, cancel := context.WithCancel(t.Context())
	s := b.dialWith(ctx)
	require.NoError(t, s.Send(frame(1)))
	<-b.engine.asked
	cancel()
	_, err := s.Recv()
	require.Error(t, err)
	b.engine.release() // an answer after the end harms nobody
}

func TestClientThatSendsMoreThanIsAllowedInFlightWaits(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.engine.hold, b.engine.asked = true, make(chan struct{}, streamInFlight+10)
	s := b.dial()
	var ids []uint64
	for i := range uint64(streamInFlight + 5) {
		ids = append(ids, i)
	}
	require.NoError(t, s.Send(frame(ids...)))
	for range streamInFlight {
		<-b.engine.asked
	}
	b.engine.mu.Lock()
	require.Len(t, b.engine.held, streamInFlight)
	b.engine.mu.Unlock()

	b.engine.mu.Lock()
	b.engine.hold = false
	b.engine.mu.Unlock()
	b.engine.release()
	require.Len(t, answers(t, s, len(ids)), len(ids))
}
