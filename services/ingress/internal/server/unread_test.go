package server_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/pkg/apierr"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/server"
)

const (
	answerRoom  = 96 << 20 // the smallest that may be configured
	largeAnswer = 8 << 20
	popMethod   = "/postrider.queue.v1.QueueService/Pop"
)

// large answers pops of queue "large" with one message of that size under a lease of its own, and those of others with a small one.
func large(size int) func(op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
	var leases atomic.Int64
	return func(op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
		pop := op.GetPop()
		if pop == nil {
			return accept(op)
		}
		payload := []byte("small")
		if pop.GetQueue() == "large" {
			payload = make([]byte, size)
		}
		resp := &queuev1.PopResponse{Lease: fmt.Sprint(pop.GetQueue(), leases.Add(1)), Deliveries: []*queuev1.Delivery{{MessageId: "m", Payload: payload}}}
		for _, s := range pop.GetSettle().GetSettlements() {
			resp.Settled = append(resp.Settled, &queuev1.AckResult{MessageId: s.GetMessageId(), Status: queuev1.AckStatus_ACK_STATUS_SETTLED})
		}
		return &dispatcherv1.Result{Result: &dispatcherv1.Result_Pop{Pop: resp}}, nil
	}
}

// unreadSurface has little room for answers of that size.
func unreadSurface(t *testing.T, size int, patience time.Duration) *surface {
	t.Helper()
	s := startWith(t, server.Config{Timeout: 20 * time.Second, MaxBodyBytes: domain.RequestBytes, AnswerTimeout: patience})
	s.exchange.answer = large(size)
	return s
}

// metric reads a counter or gauge of the surface.
func (s *surface) metric(name string) float64 {
	s.t.Helper()
	families, err := s.env.Metrics.Gather()
	require.NoError(s.t, err)
	for _, f := range families {
		if f.GetName() == "postrider_ingress_"+name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	require.Fail(s.t, "no metric", name)
	return 0
}

func (s *surface) releases() int {
	s.exchange.mu.Lock()
	defer s.exchange.mu.Unlock()
	return len(s.exchange.released)
}

// dialRPC returns a connection of its own to the gRPC listener.
func (s *surface) dialRPC() *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient("passthrough:///mem:rpc", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(s.env.Dial),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// unreadRPC sends a pop over gRPC whose answer nobody reads, and returns when it is answered: nil, or the error.
func (s *surface) unreadRPC(ctx context.Context, conn *grpc.ClientConn) error {
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, popMethod)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&queuev1.PopRequest{Queue: "large"}); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	if md, err := stream.Header(); err == nil && len(md.Get("content-type")) > 0 && len(stream.Trailer()) == 0 {
		return nil
	}
	return stream.RecvMsg(&queuev1.PopResponse{}) // an error came instead of an answer
}

// unreadREST sends a pop over REST whose answer nobody reads, and returns the connection and the first line of the answer.
func (s *surface) unreadREST() (net.Conn, string) {
	s.t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(s.t.Context(), "tcp", s.web)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	require.NoError(s.t, conn.(*net.TCPConn).SetReadBuffer(4<<10))
	_, err = fmt.Fprintf(conn, "POST /v1/queues/large/pop HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 0\r\n\r\n", adminKey)
	require.NoError(s.t, err)
	line := make([]byte, len("HTTP/1.1 200"))
	_, err = io.ReadFull(conn, line)
	require.NoError(s.t, err)
	return conn, string(line)
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func (s *surface) eventually(what string, fn func() bool) {
	s.t.Helper()
	require.Eventually(s.t, fn, 20*time.Second, 5*time.Millisecond, what)
}

// othersGoOn pops small messages on both surfaces.
func (s *surface) othersGoOn() {
	s.t.Helper()
	for range 20 {
		require.Equal(s.t, http.StatusOK, s.request(http.MethodPost, "/v1/queues/small/pop", "").status)
		resp, err := queuev1.NewQueueServiceClient(s.conn).Pop(s.as(writeKey), &queuev1.PopRequest{Queue: "small"})
		require.NoError(s.t, err)
		require.Len(s.t, resp.GetDeliveries(), 1)
	}
}

//nolint:paralleltest // it measures the heap
func TestAnswersThatNobodyReadsTakeBoundedMemory(t *testing.T) {
	for name, unread := range map[string]func(s *surface) (refused bool, leave func()){
		"grpc": func(s *surface) (bool, func()) {
			conn := s.dialRPC()
			err := s.unreadRPC(s.as(writeKey), conn)
			if err != nil {
				require.Equal(t, "OVERLOADED", apierr.Reason(err), "%v", err)
				require.Positive(t, apierr.From(err).RetryAfter)
			}
			return err != nil, func() { _ = conn.Close() }
		},
		"rest": func(s *surface) (bool, func()) {
			conn, line := s.unreadREST()
			require.Contains(t, []string{"HTTP/1.1 200", "HTTP/1.1 429"}, line)
			return line != "HTTP/1.1 200", func() { _ = conn.Close() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := unreadSurface(t, largeAnswer, time.Minute)
			before := heap()
			refused, most := 0, 0.0
			var leave []func()
			for range 40 {
				no, gone := unread(s)
				if no {
					refused++
				}
				leave = append(leave, gone)
				most = max(most, s.metric("answer_bytes"))
			}

			grown := heap() - before
			require.Greater(t, refused, 20)
			require.Less(t, refused, 38)
			require.Equal(t, refused, s.releases(), "what was refused is not leased")
			require.InDelta(t, float64(refused), s.metric("answers_dropped_total"), 0)
			require.LessOrEqual(t, most, float64(answerRoom))
			require.Greater(t, most, float64(answerRoom)/2)
			require.Less(t, grown, int64(2*answerRoom), "%d MiB for %d answers", grown>>20, 40-refused)
			s.othersGoOn()

			for _, gone := range leave {
				gone()
			}

			s.eventually("leases come back", func() bool { return s.releases() == 40 })
			s.eventually("so does the room", func() bool { return s.metric("answer_bytes") == 0 })
			require.Less(t, heap()-before, int64(answerRoom)/2)
		})
	}
}

func TestAClientThatDoesNotReadItsAnswerIsCutOff(t *testing.T) {
	t.Parallel()
	s := unreadSurface(t, 4<<20, time.Second) // and a second for each MiB: more than the sockets between hold
	require.NoError(t, s.unreadRPC(s.as(writeKey), s.dialRPC()))
	_, line := s.unreadREST()
	require.Equal(t, "HTTP/1.1 200", line)

	s.eventually("leases come back", func() bool { return s.releases() == 2 })

	require.InDelta(t, 2, s.metric("answers_cut_off_total"), 0)
	s.eventually("so does the room", func() bool { return s.metric("answer_bytes") == 0 })
	s.othersGoOn()
}

func TestAnAnswerThatIsReadIsNotGivenBack(t *testing.T) {
	t.Parallel()
	s := unreadSurface(t, 1<<20, time.Minute)
	client := queuev1.NewQueueServiceClient(s.dialRPC())
	ended := make(chan error, 8)
	for range 8 {
		go func() {
			for range 8 {
				resp, err := client.Pop(s.as(writeKey), &queuev1.PopRequest{Queue: "large"})
				if err != nil || len(resp.GetDeliveries()) != 1 {
					ended <- fmt.Errorf("%d messages: %w", len(resp.GetDeliveries()), err)
					return
				}
			}
			ended <- nil
		}()
	}
	for range 8 {
		require.NoError(t, <-ended)
	}
	got := s.request(http.MethodPost, "/v1/queues/large/pop", "")
	require.Equal(t, http.StatusOK, got.status)
	require.Greater(t, len(got.body), 1<<20)

	s.eventually("the room comes back", func() bool { return s.metric("answer_bytes") == 0 })
	require.Zero(t, s.releases())
	require.Zero(t, s.metric("answers_cut_off_total"))
}

func TestAClientThatLeavesInTheMiddleOfItsAnswerLeasesNothing(t *testing.T) {
	t.Parallel()
	s := unreadSurface(t, largeAnswer, time.Minute)
	conn := s.dialRPC()
	ctx, leave := context.WithCancel(s.as(writeKey))
	require.NoError(t, s.unreadRPC(ctx, conn))
	require.Positive(t, s.metric("answer_bytes"))

	leave() // its call alone: the connection stays

	s.eventually("the lease comes back", func() bool { return s.releases() == 1 })
	s.eventually("so does the room", func() bool { return s.metric("answer_bytes") == 0 })
	_, err := queuev1.NewQueueServiceClient(conn).Pop(s.as(writeKey), &queuev1.PopRequest{Queue: "small"})
	require.NoError(t, err)
}

// full leaves so many answers unread that no other large one has room, and returns what reads no more.
func (s *surface) full() (leave func()) {
	s.t.Helper()
	conn := s.dialRPC()
	for {
		if err := s.unreadRPC(s.as(writeKey), conn); err != nil {
			require.Equal(s.t, "OVERLOADED", apierr.Reason(err))
			return func() { _ = conn.Close() }
		}
	}
}

func TestAPopThatMayWaitGetsItsLargeMessageWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	s := unreadSurface(t, largeAnswer, time.Minute)
	leave := s.full()
	type outcome struct {
		resp *queuev1.PopResponse
		err  error
	}
	got := make(chan outcome, 1)
	before := s.metric("answers_dropped_total")
	go func() {
		resp, err := queuev1.NewQueueServiceClient(s.dialRPC()).Pop(s.as(writeKey), &queuev1.PopRequest{Queue: "large", Wait: durationpb.New(20 * time.Second)})
		got <- outcome{resp, err}
	}()
	s.eventually("it is given back first", func() bool { return s.metric("answers_dropped_total") > before })
	s.othersGoOn()
	require.Empty(t, got)

	leave()

	o := <-got
	require.NoError(t, o.err)
	require.Len(t, o.resp.GetDeliveries(), 1)
}

func TestAPopWithoutRoomIsToldWhatItSettledAndAsksForLess(t *testing.T) {
	t.Parallel()
	s := unreadSurface(t, largeAnswer, time.Minute)
	defer s.full()()
	answered := s.exchange.answer
	asked := make(chan int32, 10)
	s.exchange.mu.Lock()
	s.exchange.answer = func(op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
		asked <- op.GetPop().GetMaxBytes()
		return answered(op)
	}
	s.exchange.mu.Unlock()

	settled := s.request(http.MethodPost, "/v1/queues/large/pop", `{"settle":{"lease":"l","settlements":[{"message_id":"m1"}]}}`)
	refused := s.request(http.MethodPost, "/v1/queues/large/pop", "")
	waited := s.request(http.MethodPost, "/v1/queues/large/pop", `{"wait":"0.05s"}`)

	require.Equal(t, http.StatusOK, settled.status)
	require.Contains(t, settled.body, `"m1"`)
	require.Contains(t, settled.body, `"lease":""`)
	for _, a := range []answer{refused, waited} {
		require.Equal(t, http.StatusTooManyRequests, a.status)
		require.Equal(t, "1", a.header.Get("Retry-After"))
		require.Contains(t, a.body, "OVERLOADED")
	}
	require.Len(t, asked, 3)
	for range 3 {
		most := <-asked
		require.Positive(t, most)
		require.Less(t, most, int32(4<<20), "it asks for what there is room for")
	}
}
