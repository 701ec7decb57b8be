package server_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/engine"
)

// settling answers like a queue that is empty: what is settled is told, and a pop that waits waits.
func settling(op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
	pop := op.GetPop()
	if pop == nil {
		return accept(op)
	}
	if pop.GetWait().AsDuration() > 0 {
		return nil, errWait
	}
	resp := &queuev1.PopResponse{}
	for _, s := range pop.GetSettle().GetSettlements() {
		resp.Settled = append(resp.Settled, &queuev1.AckResult{MessageId: s.GetMessageId(), Status: queuev1.AckStatus_ACK_STATUS_SETTLED})
	}
	return &dispatcherv1.Result{Result: &dispatcherv1.Result_Pop{Pop: resp}}, nil
}

func settlePop() *queuev1.PopRequest {
	return &queuev1.PopRequest{
		Queue: "q", Wait: durationpb.New(time.Minute),
		Settle: &queuev1.AckRequest{Lease: "l", Settlements: []*queuev1.Settlement{{MessageId: "m1"}}},
	}
}

func TestADrainTellsAWaitingPopWhatItSettled(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.exchange.answer = settling
	rest := make(chan answer, 1)
	go func() {
		rest <- s.request(http.MethodPost, "/v1/queues/q/pop", `{"wait":"60s","settle":{"lease":"l","settlements":[{"message_id":"m1"}]}}`)
	}()
	type outcome struct {
		resp *queuev1.PopResponse
		err  error
	}
	overGRPC := make(chan outcome, 1)
	go func() {
		resp, err := queuev1.NewQueueServiceClient(s.conn).Pop(s.as(writeKey), settlePop())
		overGRPC <- outcome{resp, err}
	}()
	<-s.exchange.parked
	<-s.exchange.parked

	ended := s.drain()

	got := <-rest
	require.Equal(t, http.StatusOK, got.status, got.body)
	require.Equal(t, "true", got.header.Get("Postrider-Draining"))
	require.Contains(t, got.body, `"m1"`)
	o := <-overGRPC
	require.NoError(t, o.err)
	require.True(t, o.resp.GetDraining())
	require.Equal(t, "m1", o.resp.GetSettled()[0].GetMessageId())
	require.NoError(t, <-ended)
}

func TestAPopThatArrivesAtADrainingNodeSettlesAndDoesNotWait(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.exchange.answer = settling
	s.goAway()

	resp, err := queuev1.NewQueueServiceClient(s.conn).Pop(s.as(writeKey), settlePop())

	require.NoError(t, err)
	require.True(t, resp.GetDraining())
	require.Equal(t, "m1", resp.GetSettled()[0].GetMessageId())
}

func TestWhatAPopSettledIsToldEvenIfItsWaitFails(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.exchange.answer = func(op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
		if op.GetPop().GetWait().AsDuration() > 0 {
			return nil, engine.ErrNoDispatcher
		}
		return settling(op)
	}

	resp, err := queuev1.NewQueueServiceClient(s.conn).Pop(s.as(writeKey), settlePop())

	require.NoError(t, err)
	require.Equal(t, "m1", resp.GetSettled()[0].GetMessageId())
}

func TestAPopThatSettlesWaitsForWhatItDidNotFindAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.exchange.answer = func(op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
		if op.GetPop().GetWait().AsDuration() == 0 {
			return settling(op)
		}
		return &dispatcherv1.Result{Result: &dispatcherv1.Result_Pop{Pop: &queuev1.PopResponse{
			Lease: "next", Deliveries: []*queuev1.Delivery{{MessageId: "m2"}}, LeaseDuration: durationpb.New(time.Second),
		}}}, nil
	}

	resp, err := queuev1.NewQueueServiceClient(s.conn).Pop(s.as(writeKey), settlePop())

	require.NoError(t, err)
	require.Equal(t, "m1", resp.GetSettled()[0].GetMessageId())
	require.Equal(t, "next", resp.GetLease())
	require.Equal(t, "m2", resp.GetDeliveries()[0].GetMessageId())
	require.Nil(t, s.exchange.ops[1].GetPop().GetSettle(), "it is settled once")
}

func TestABadPopIsRefusedWhileTheNodeDrains(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.exchange.answer = func(*dispatcherv1.Operation) (*dispatcherv1.Result, error) {
		<-time.After(5 * time.Millisecond) // long enough for the drain to be seen
		return nil, engine.ErrOverloaded
	}
	s.goAway()
	queue := queuev1.NewQueueServiceClient(s.conn)
	for range 20 { // the drain may be seen before or after the request is judged
		_, err := queue.Pop(s.as(writeKey), &queuev1.PopRequest{Queue: "", Wait: durationpb.New(time.Minute)})
		code, _ := reason(err)
		require.Equal(t, "NAME_EMPTY", code, "%v", err)
	}

	_, err := queue.Pop(s.as(writeKey), &queuev1.PopRequest{Queue: "q", Wait: durationpb.New(time.Minute)})

	code, _ := reason(err)
	require.Equal(t, "OVERLOADED", code, "%v", err)
}

func TestADrainingPushStreamDoesNotEndWellOverWhatItDidNotTake(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.exchange.answer = func(op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
		if op.GetPush().GetQueue() == "held" {
			return nil, errHold
		}
		return accept(op)
	}
	stream, err := queuev1.NewQueueServiceClient(s.conn).PushStream(s.as(writeKey))
	require.NoError(t, err)
	require.NoError(t, stream.Send(&queuev1.PushStreamRequest{Entries: []*queuev1.PushStreamRequest_Entry{pushOne(1, "held", "x")}}))
	release := <-s.exchange.held
	s.goAway()
	answered := map[uint64]bool{}
	var id uint64 = 1
	for range 100 { // until the stream has seen that the node drains
		id++
		require.NoError(t, stream.Send(&queuev1.PushStreamRequest{Entries: []*queuev1.PushStreamRequest_Entry{pushOne(id, "q", "x")}}))
	}

	require.NoError(t, stream.CloseSend())
	time.AfterFunc(50*time.Millisecond, release) // after the end of the client's sending has come
	for {
		m, rerr := stream.Recv()
		if rerr != nil {
			err = rerr
			break
		}
		for _, e := range m.GetEntries() {
			answered[e.GetRequestId()] = true
		}
	}

	require.True(t, answered[1])
	if len(answered) == int(id) {
		require.ErrorIs(t, err, io.EOF)
	} else {
		code, _ := reason(err)
		require.Equal(t, "DRAINING", code, "%d of %d answered: %v", len(answered), id, err)
	}
}
