package postrider_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

func (n *node) Transact(ctx context.Context, req *queuev1.TransactRequest) (*queuev1.TransactResponse, error) {
	n.mu.Lock()
	n.transacts++
	count := n.transacts
	n.mu.Unlock()
	md, _ := metadata.FromIncomingContext(ctx)
	key := ""
	if keys := md.Get("idempotency-key"); len(keys) == 1 {
		key = keys[0]
	}
	return n.onTransact(count, key, req)
}

func wire(code codes.Code, reason string) error {
	st, err := status.New(code, "no").WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: "postrider.dev"})
	if err != nil {
		return err
	}
	return st.Err()
}

func TestATransactionIsAskedForUnderOneKeyUntilItsOutcomeIsKnown(t *testing.T) {
	t.Parallel()
	var keys []string
	var last *queuev1.TransactRequest
	n := start(t, &node{onTransact: func(count int, key string, req *queuev1.TransactRequest) (*queuev1.TransactResponse, error) {
		keys, last = append(keys, key), req
		switch count {
		case 1:
			return nil, wire(codes.DeadlineExceeded, "OUTCOME_UNKNOWN")
		case 2:
			return nil, wire(codes.Aborted, "IDEMPOTENCY_KEY_IN_USE")
		case 3:
			return nil, wire(codes.Unavailable, "OUTCOME_UNKNOWN")
		}
		return &queuev1.TransactResponse{Results: []*queuev1.TransactResult{
			{Ack: &queuev1.AckResponse{Results: []*queuev1.AckResult{{MessageId: "m", Status: queuev1.AckStatus_ACK_STATUS_SETTLED}}}},
			{Push: &queuev1.PushResponse{Results: []*queuev1.PushResult{{Status: queuev1.PushStatus_PUSH_STATUS_DUPLICATE, MessageId: "x", Offset: 7}}}},
		}}, nil
	}})
	c := dial(t, n)
	l := &postrider.Lease{Queue: "in", Token: "l", Deliveries: []*postrider.Delivery{{MessageID: "m"}}}
	tx := (&postrider.Transaction{}).Ack(l).Reject(l, &postrider.Delivery{MessageID: "bad"}, "no").
		Push("out", postrider.Message{Partition: "p", Payload: []byte("x"), Delay: time.Second})

	done, err := c.Transact(t.Context(), tx)

	require.NoError(t, err)
	require.Len(t, keys, 4)
	require.NotEmpty(t, keys[0])
	require.Equal(t, []string{keys[0], keys[0], keys[0], keys[0]}, keys)
	require.Len(t, last.GetOperations(), 2, "what follows of one lease is one operation")
	require.Equal(t, "m", last.GetOperations()[0].GetAck().GetSettlements()[0].GetMessageId())
	require.Equal(t, queuev1.AckAction_ACK_ACTION_REJECT, last.GetOperations()[0].GetAck().GetSettlements()[1].GetAction())
	require.Equal(t, time.Second, last.GetOperations()[1].GetPush().GetItems()[0].GetDelay().AsDuration())
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, done[0].Settled[0].Status)
	require.True(t, done[1].Pushed[0].Duplicate)
	_, err = c.Transact(t.Context(), (&postrider.Transaction{}).Key("mine").Push("out", postrider.Message{}))
	require.NoError(t, err)
	require.Equal(t, "mine", keys[4])
}

func TestARefusedTransactionNamesTheOperationsAtFault(t *testing.T) {
	t.Parallel()
	st, err := status.New(codes.Aborted, "operation 1 is refused").WithDetails(
		&errdetails.ErrorInfo{Reason: "STALE_EPOCH", Domain: "postrider.dev"},
		&queuev1.TransactResponse{Results: []*queuev1.TransactResult{
			{Status: queuev1.TransactStatus_TRANSACT_STATUS_NOT_DONE},
			{Status: queuev1.TransactStatus_TRANSACT_STATUS_REFUSED, Error: &queuev1.ItemError{Code: "STALE_EPOCH", Field: "operations[1].ack.lease"}},
		}})
	require.NoError(t, err)
	n := start(t, &node{onTransact: func(int, string, *queuev1.TransactRequest) (*queuev1.TransactResponse, error) { return nil, st.Err() }})

	_, err = dial(t, n).Transact(t.Context(), (&postrider.Transaction{}).Push("out", postrider.Message{}))

	require.Equal(t, "STALE_EPOCH", postrider.Code(err))
	refused := &postrider.TransactionError{}
	require.ErrorAs(t, err, &refused)
	require.NoError(t, refused.Operations[0])
	require.Equal(t, "STALE_EPOCH", postrider.Code(refused.Operations[1]))
	require.Equal(t, 1, n.transacts)
}
