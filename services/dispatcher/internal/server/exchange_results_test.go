package server

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/grpcclient"
	"postrider.dev/pkg/grpcserver"
	"postrider.dev/pkg/run/runtest"
	"postrider.dev/pkg/tenant"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// librarian answers a pop with what the queue's name says, and remembers what came back.
type librarian struct {
	byHand

	answers map[string]*queuev1.PopResponse
	back    chan string
}

func (e *librarian) Pop(_ context.Context, _ tenant.ID, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	return e.answers[req.GetQueue()], nil
}

func (e *librarian) Undelivered(t tenant.ID, queue string, resp *queuev1.PopResponse) {
	e.back <- string(t) + "/" + queue + ": " + resp.GetLease()
}

// answerOf has messages of that size, with headers of the most bytes if there is room for them.
func answerOf(messages, payload int) *queuev1.PopResponse {
	resp := &queuev1.PopResponse{Lease: "l"}
	for i := range messages {
		resp.Deliveries = append(resp.Deliveries, &queuev1.Delivery{
			MessageId: strconv.Itoa(i), Offset: int64(i), Payload: make([]byte, payload), Headers: map[string]string{"h": strings.Repeat("v", 8<<10-1)},
		})
	}
	return resp
}

func popOf(id uint64, queue string) *dispatcherv1.Operation {
	return &dispatcherv1.Operation{Id: id, Tenant: "acme", Op: &dispatcherv1.Operation_Pop{Pop: &queuev1.PopRequest{Queue: queue}}}
}

func TestALargeResultNeverBreaksTheStreamOfTheOthers(t *testing.T) {
	t.Parallel()
	e := &librarian{back: make(chan string, 10), answers: map[string]*queuev1.PopResponse{
		"small":    answerOf(1, 10),
		"headers":  answerOf(1000, 10),            // 8 MiB of headers
		"largest":  answerOf(1000, 32<<10-8<<10),  // 32 MiB with them
		"too much": answerOf(1000, 40<<10-10<<10), // more than a message of the stream may be
		"far off":  answerOf(3, 16<<20),
	}}
	env := runtest.New(t)
	s, err := grpcserver.New(t.Context(), env, grpcserver.Options{Service: "dispatcher", Listener: "internal", Addr: "mem:x"})
	require.NoError(t, err)
	dispatcherv1.RegisterDispatcherServiceServer(s, NewExchange(e, nil, nil, calm{}, clock.Real{}, zap.NewNop(), nil))
	runtest.Go(t, s.Run)
	conn, err := grpcclient.Dial(env, "mem:x", "")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := dispatcherv1.NewDispatcherServiceClient(conn).Exchange(t.Context())
	require.NoError(t, err)

	names := []string{"small", "too much", "largest", "small", "far off", "headers", "largest", "small"}
	var ops []*dispatcherv1.Operation
	for i, name := range names {
		ops = append(ops, popOf(uint64(i+1), name))
	}
	require.NoError(t, stream.Send(&dispatcherv1.ExchangeRequest{Operations: ops}))
	require.NoError(t, stream.CloseSend())
	results := map[string]*dispatcherv1.Result{}
	for got := 0; got < len(names); {
		frame, err := stream.Recv()
		require.NoError(t, err)
		for _, r := range frame.GetResults() {
			results[names[r.GetId()-1]] = r
			got++
		}
	}

	for name, answer := range e.answers {
		if name == "too much" || name == "far off" {
			require.Equal(t, ReasonAnswerTooLarge, apierr.Reason(statusOf(results[name])), name)
			continue
		}
		require.Len(t, results[name].GetPop().GetDeliveries(), len(answer.GetDeliveries()), name)
	}
	require.ElementsMatch(t, []string{"acme/too much: l", "acme/far off: l"}, []string{<-e.back, <-e.back})
	require.Empty(t, e.back)
}

func statusOf(r *dispatcherv1.Result) error {
	return status.ErrorProto(r.GetError())
}

// TestWhatNobodyReadsIsBounded has a peer that is there and does not read.
func TestWhatNobodyReadsIsBounded(t *testing.T) {
	t.Parallel()
	e := &librarian{back: make(chan string, 100), answers: map[string]*queuev1.PopResponse{"q": answerOf(4, 8<<20)}}
	x := NewExchange(e, nil, nil, calm{}, clock.Real{}, zap.NewNop(), nil)
	s := &exchange{engine: e, log: x.log, wake: make(chan struct{}, 1), pops: map[uint64]begunPop{}}
	settling := popOf(11, "q")
	settling.GetPop().Settle = &queuev1.AckRequest{Lease: "before", AckRest: true}

	for i := range 10 { // of 32 MiB, and nothing is sent
		op := popOf(uint64(i+1), "q")
		s.answer(op, &dispatcherv1.Result{Id: op.GetId(), Result: &dispatcherv1.Result_Pop{Pop: e.answers["q"]}})
	}
	told := proto.CloneOf(&queuev1.PopResponse{Lease: "l", RestAcked: 7, Deliveries: e.answers["q"].GetDeliveries()})
	s.answer(settling, &dispatcherv1.Result{Id: 11, Result: &dispatcherv1.Result_Pop{Pop: told}})
	s.queued = exchangeQueued
	s.begin(t.Context(), popOf(12, "q"))

	require.Len(t, s.results, 12)
	require.Len(t, e.back, 8)
	for i, r := range s.results {
		switch {
		case i < 3:
			require.Equal(t, "l", r.GetPop().GetLease())
		case i == 10:
			require.EqualValues(t, 7, r.GetPop().GetRestAcked(), "what was settled is told")
			require.Empty(t, r.GetPop().GetLease())
			require.Empty(t, r.GetPop().GetDeliveries())
		default:
			require.Equal(t, ReasonOverloaded, apierr.Reason(statusOf(r.Result)), i)
		}
	}
}
