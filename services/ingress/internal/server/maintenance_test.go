package server_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

func TestInPopMaintenanceAPopIsAnsweredAtOnceAndSaysWhy(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.modes.closePops("moving: 5 o'clock, 100%\n\u00e9")

	rest := s.request("POST", "/v1/queues/q/pop", `{"wait":"30s"}`)
	resp, err := queuev1.NewQueueServiceClient(s.conn).Pop(s.as(writeKey), &queuev1.PopRequest{Queue: "q", Wait: durationpb.New(30 * time.Second)})

	require.NoError(t, err)
	require.Equal(t, "moving: 5 o'clock, 100%\n\u00e9", resp.GetPopMaintenance().GetReason())
	require.Equal(t, http.StatusNoContent, rest.status)
	require.Equal(t, "true", rest.header.Get("Postrider-Pop-Maintenance"))
	require.Equal(t, "moving:%205%20o%27clock%2C%20100%25%0A%C3%A9", rest.header.Get("Postrider-Pop-Maintenance-Reason"))
	require.Equal(t, "1", rest.header.Get("Retry-After"))
	require.Empty(t, s.exchange.ops, "no dispatcher was asked")
}

func TestAPopThatWaitsIsAnsweredWhenPopsGoIntoMaintenance(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.exchange.answer = settling // a pop that waits stays
	type outcome struct {
		resp *queuev1.PopResponse
		err  error
	}
	answered := make(chan outcome, 1)
	go func() {
		resp, err := queuev1.NewQueueServiceClient(s.conn).Pop(s.as(writeKey), &queuev1.PopRequest{Queue: "q", Wait: durationpb.New(50 * time.Second)})
		answered <- outcome{resp, err}
	}()
	<-s.exchange.parked

	s.modes.closePops("moving")

	o := <-answered
	require.NoError(t, o.err)
	require.Equal(t, "moving", o.resp.GetPopMaintenance().GetReason())
}

func TestInPopMaintenanceAcksRenewsAndReleasesGoOnAndAPopStillSettles(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.modes.closePops("moving")
	var settled *dispatcherv1.Operation
	s.exchange.answer = func(op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
		if op.GetPop() == nil {
			return &dispatcherv1.Result{Result: &dispatcherv1.Result_Renew{Renew: &queuev1.RenewResponse{}}}, nil
		}
		settled = op
		return settling(op)
	}

	resp, err := queuev1.NewQueueServiceClient(s.conn).Pop(s.as(writeKey), settlePop())
	renewed := s.request("POST", "/v1/queues/q/renew", `{"lease":"l"}`)

	require.NoError(t, err)
	require.True(t, settled.GetSettleOnly())
	require.Equal(t, "m1", resp.GetSettled()[0].GetMessageId())
	require.Equal(t, "moving", resp.GetPopMaintenance().GetReason())
	require.Equal(t, http.StatusOK, renewed.status, renewed.body)
}
