package server_test

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine"
	"postrider.dev/services/ingress/internal/server"
)

func pushOne(id uint64, queue, payload string) *queuev1.PushStreamRequest_Entry {
	return &queuev1.PushStreamRequest_Entry{RequestId: id, Request: &queuev1.PushRequest{
		Queue: queue, Items: []*queuev1.PushItem{{Payload: []byte(payload)}},
	}}
}

// collect reads answers until n have come.
func collect(t *testing.T, stream queuev1.QueueService_PushStreamClient, n int) map[uint64]*queuev1.PushStreamResponse_Entry {
	t.Helper()
	got := map[uint64]*queuev1.PushStreamResponse_Entry{}
	for len(got) < n {
		m, err := stream.Recv()
		require.NoError(t, err)
		for _, e := range m.GetEntries() {
			require.Nil(t, got[e.GetRequestId()], "answered twice")
			got[e.GetRequestId()] = e
		}
	}
	return got
}

func TestEveryRequestOfAPushStreamGetsItsOwnAnswer(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.exchange.answer = func(op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
		if op.GetPush().GetQueue() == "lost" {
			return nil, engine.ErrOutcomeUnknown
		}
		return accept(op)
	}
	stream, err := queuev1.NewQueueServiceClient(s.conn).PushStream(s.as(writeKey))
	require.NoError(t, err)

	require.NoError(t, stream.Send(&queuev1.PushStreamRequest{Entries: []*queuev1.PushStreamRequest_Entry{
		pushOne(1, "q", "a"), pushOne(2, "", "b"), {RequestId: 3}, pushOne(4, "lost", "c"), pushOne(5, "q", "d"),
	}}))
	require.NoError(t, stream.CloseSend())
	got := collect(t, stream, 5)
	_, err = stream.Recv()

	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_QUEUED, got[1].GetResponse().GetResults()[0].GetStatus())
	require.Equal(t, "NAME_EMPTY", got[2].GetError().GetCode())
	require.EqualValues(t, codes.InvalidArgument, got[2].GetErrorStatus())
	require.Equal(t, "MISSING_FIELD", got[3].GetError().GetCode())
	require.Equal(t, "OUTCOME_UNKNOWN", got[4].GetError().GetCode())
	require.EqualValues(t, codes.Unavailable, got[4].GetErrorStatus())
	require.Equal(t, "d", string(s.exchange.ops[2].GetPush().GetItems()[0].GetPayload()), "order is kept")
	require.NotNil(t, got[5].GetResponse())
}

func TestAPushStreamNeedsAKeyThatMayWrite(t *testing.T) {
	t.Parallel()
	s := start(t)
	for key, want := range map[string]codes.Code{readKey: codes.PermissionDenied, "nonsense": codes.Unauthenticated} {
		stream, err := queuev1.NewQueueServiceClient(s.conn).PushStream(s.as(key))
		require.NoError(t, err)
		_, err = stream.Recv()
		require.Equal(t, want, status.Code(err))
	}
}

func TestAFrameWithTooManyRequestsEndsTheStream(t *testing.T) {
	t.Parallel()
	s := start(t)
	stream, err := queuev1.NewQueueServiceClient(s.conn).PushStream(s.as(writeKey))
	require.NoError(t, err)
	frame := &queuev1.PushStreamRequest{}
	for i := range 1001 {
		frame.Entries = append(frame.Entries, pushOne(uint64(i), "q", "x"))
	}

	require.NoError(t, stream.Send(frame))

	_, err = stream.Recv()
	code, _ := reason(err)
	require.Equal(t, "TOO_MANY_ITEMS", code, "%v", err)
	require.Zero(t, s.exchange.forwarded())
}

func TestDrainAnswersWaitingPopsAtOnceAndEndsStreams(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.exchange.answer = func(op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
		if op.GetPop() != nil {
			return nil, errWait
		}
		return accept(op)
	}
	rest := make(chan answer, 1)
	go func() { rest <- s.request(http.MethodPost, "/v1/queues/q/pop", `{"wait":"60s"}`) }()
	overGRPC := make(chan *queuev1.PopResponse, 1)
	go func() {
		resp, err := queuev1.NewQueueServiceClient(s.conn).Pop(s.as(writeKey), &queuev1.PopRequest{Queue: "q", Wait: durationpb.New(time.Minute)})
		if err == nil {
			overGRPC <- resp
		}
		close(overGRPC)
	}()
	stream, err := queuev1.NewQueueServiceClient(s.conn).PushStream(s.as(writeKey))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&queuev1.PushStreamRequest{Entries: []*queuev1.PushStreamRequest_Entry{pushOne(1, "q", "x")}}))
	collect(t, stream, 1)
	<-s.exchange.parked
	<-s.exchange.parked

	ended := s.drain()

	got := <-rest
	require.Equal(t, http.StatusNoContent, got.status)
	require.Equal(t, "true", got.header.Get("Postrider-Draining"))
	require.True(t, (<-overGRPC).GetDraining())
	_, err = stream.Recv()
	code, _ := reason(err)
	require.Equal(t, "DRAINING", code, "%v", err)
	require.NoError(t, <-ended)
}

func TestALeaseThatCouldNotBeHandedOverIsGivenBack(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.exchange.answer = func(op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
		return &dispatcherv1.Result{Result: &dispatcherv1.Result_Pop{Pop: &queuev1.PopResponse{
			Lease: "lease-" + op.GetPop().GetQueue(), Deliveries: []*queuev1.Delivery{{MessageId: "m"}},
		}}}, errLate
	}
	ctx, cancel := context.WithCancel(s.as(writeKey))
	var clients sync.WaitGroup
	clients.Go(func() {
		_, err := queuev1.NewQueueServiceClient(s.conn).Pop(ctx, &queuev1.PopRequest{Queue: "grpc"})
		assert.Equal(t, codes.Canceled, status.Code(err))
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://ingress/v1/queues/rest/pop", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+writeKey)
	clients.Go(func() {
		resp, err := s.http.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		assert.ErrorIs(t, err, context.Canceled)
	})
	<-s.exchange.parked
	<-s.exchange.parked

	cancel()

	clients.Wait()
	require.Eventually(t, func() bool {
		s.exchange.mu.Lock()
		defer s.exchange.mu.Unlock()
		return slices.Contains(s.exchange.released, "lease-grpc") && slices.Contains(s.exchange.released, "lease-rest")
	}, 5*time.Second, time.Millisecond)
}

func TestTheProducersTraceTravelsInTheHeaders(t *testing.T) {
	t.Parallel()
	s := start(t)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	own := strings.Replace(trace, "0af", "1af", 1)

	s.request(http.MethodPost, "/v1/queues/q/messages", `{"items":[{"payload":1},{"payload":2,"headers":{"traceparent":"`+own+`"}}]}`, "traceparent", trace)
	s.request(http.MethodPost, "/v1/queues/q/messages", `{"payload":3}`, "traceparent", "not a trace")
	_, err := queuev1.NewQueueServiceClient(s.conn).Push(metadata.AppendToOutgoingContext(s.as(writeKey), "traceparent", trace),
		&queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{{Payload: []byte("4")}}})
	require.NoError(t, err)

	header := func(op, item int) string {
		return s.exchange.ops[op].GetPush().GetItems()[item].GetHeaders()["traceparent"]
	}
	require.Equal(t, trace, header(0, 0))
	require.Equal(t, own, header(0, 1))
	require.Empty(t, header(1, 0))
	require.Equal(t, trace, header(2, 0))
}

func TestARequestOfTooManyBytesIsRefusedOverGRPC(t *testing.T) {
	t.Parallel()
	s := start(t)
	big := &queuev1.PushItem{Payload: make([]byte, 12<<20)}
	_, err := queuev1.NewQueueServiceClient(s.conn).Push(s.as(writeKey), &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{big, big, big}})
	code, _ := reason(err)
	require.Equal(t, "PAYLOAD_TOO_LARGE", code, "%v", err)
	require.Zero(t, s.exchange.forwarded())
}

func TestBrowsersOfConfiguredOriginsMayCallAndOthersNot(t *testing.T) {
	t.Parallel()
	s := startWith(t, server.Config{Timeout: time.Second, MaxBodyBytes: domain.RequestBytes, AnswerTimeout: time.Minute, CORSOrigins: []string{"https://app.example.com"}})
	for origin, want := range map[string]string{"https://app.example.com": "https://app.example.com", "https://evil.example.com": ""} {
		got := s.request(http.MethodOptions, "/v1/queues/q/messages", "", "Origin", origin, "Access-Control-Request-Method", "POST",
			"Access-Control-Request-Headers", "authorization,content-type", "Authorization", "")
		require.Equal(t, want, got.header.Get("Access-Control-Allow-Origin"))
		require.Empty(t, got.header.Get("Access-Control-Allow-Credentials"))
	}
}

func TestAnEngineErrorHasItsOwnAnswer(t *testing.T) {
	t.Parallel()
	s := start(t)
	for err, want := range map[error]int{
		engine.ErrNoDispatcher: 503, engine.ErrOutcomeUnknown: 503, engine.ErrOverloaded: 429, context.DeadlineExceeded: 504, &engine.TooLargeError{Size: 2, Limit: 1}: 413,
	} {
		s.exchange.mu.Lock()
		s.exchange.answer = func(*dispatcherv1.Operation) (*dispatcherv1.Result, error) { return nil, err }
		s.exchange.mu.Unlock()
		got := s.request(http.MethodPost, "/v1/queues/q/messages", `{"payload":1}`)
		require.Equal(t, want, got.status, got.body)
	}
}

func TestAPushWithoutAnAcceptedItemIsAnsweredByWhoseFaultItIs(t *testing.T) {
	t.Parallel()
	s := start(t)
	for code, want := range map[string]int{"INTERNAL": 500, "DATABASE_UNAVAILABLE": 503, "IDEMPOTENCY_KEY_REUSED": 422, "MESSAGE_TOO_LARGE": 413, "NAME_TOO_LONG": 400} {
		s.exchange.mu.Lock()
		s.exchange.answer = func(*dispatcherv1.Operation) (*dispatcherv1.Result, error) {
			return &dispatcherv1.Result{Result: &dispatcherv1.Result_Push{Push: &queuev1.PushResponse{Results: []*queuev1.PushResult{{
				Status: queuev1.PushStatus_PUSH_STATUS_FAILED, Error: &queuev1.ItemError{Code: code, Message: "why"},
			}}}}}, nil
		}
		s.exchange.mu.Unlock()
		got := s.request(http.MethodPost, "/v1/queues/q/messages", `{"payload":1}`)
		require.Equal(t, want, got.status, got.body)
		require.Contains(t, got.body, `"code":"`+code+`"`)
	}
}
