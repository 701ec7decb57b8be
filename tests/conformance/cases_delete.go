package conformance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

func deleteMessage(t *testing.T, k kit) {
	q := k.name("delete")
	named := item("p", `2`)
	named.ClientId = "order 7/8"
	pushed := push(t, k, q, item("p", `1`), named, item("p", `3`)).GetResults()
	held := pop(t, k, q, 3)
	require.Len(t, held.GetDeliveries(), 3)

	byID, err := k.DeleteMessage(t.Context(), &queuev1.DeleteMessageRequest{Queue: q, MessageId: pushed[0].GetMessageId()})
	require.NoError(t, err)
	byName, err := k.DeleteMessage(t.Context(), &queuev1.DeleteMessageRequest{Queue: q, Partition: "p", ClientId: "order 7/8"})
	require.NoError(t, err)
	again, err := k.DeleteMessage(t.Context(), &queuev1.DeleteMessageRequest{Queue: q, Partition: "p", ClientId: "order 7/8"})
	require.NoError(t, err)

	require.Equal(t, pushed[0].GetMessageId(), byID.GetMessageId())
	require.Equal(t, pushed[1].GetMessageId(), byName.GetMessageId())
	require.Equal(t, byName.GetMessageId(), again.GetMessageId(), "it is answered the same")
	require.False(t, byID.GetCancelled())
	settled, err := k.Ack(t.Context(), &queuev1.AckRequest{
		Queue: q, Lease: held.GetLease(), AckRest: true, Settlements: []*queuev1.Settlement{{MessageId: pushed[0].GetMessageId()}},
	})
	require.NoError(t, err)
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_ALREADY_SETTLED, settled.GetResults()[0].GetStatus())
	require.EqualValues(t, 1, settled.GetRestAcked(), "its neighbour stays leased")
	seen, err := k.PeekMessages(t.Context(), &queuev1.PeekMessagesRequest{Queue: q})
	require.NoError(t, err)
	require.Equal(t, []string{`3`}, peeked(seen))
	for name, req := range map[string]*queuev1.LookupMessageRequest{
		"by id":   {Queue: q, MessageId: pushed[0].GetMessageId()},
		"by name": {Queue: q, Partition: "p", ClientId: "order 7/8"},
	} {
		_, err := k.LookupMessage(t.Context(), req)
		require.Equal(t, "MESSAGE_NOT_FOUND", Code(err), "%s: %v", name, err)
	}
	told, err := k.Subscribe(t.Context(), &queuev1.SubscribeRequest{Queue: q, From: "earliest"}, 1)
	require.NoError(t, err)
	require.Equal(t, `3`, string(told[0].GetMessage().GetPayload()), "neither a message nor a gap before it")
	for field, req := range map[string]*queuev1.DeleteMessageRequest{
		"nothing": {Queue: q}, "both": {Queue: q, MessageId: pushed[0].GetMessageId(), ClientId: "c"},
	} {
		_, err := k.DeleteMessage(t.Context(), req)
		require.Contains(t, []string{"MISSING_FIELD", "CONFLICTING_FIELDS"}, Code(err), "%s: %v", field, err)
	}
	_, err = k.DeleteMessage(t.Context(), &queuev1.DeleteMessageRequest{Queue: q, ClientId: "nobody"})
	require.Equal(t, "MESSAGE_NOT_FOUND", Code(err), "%v", err)
	_, err = k.DeleteMessage(t.Context(), &queuev1.DeleteMessageRequest{Queue: k.name("nobody"), ClientId: "c"})
	require.Equal(t, "QUEUE_NOT_FOUND", Code(err), "%v", err)
}

func cancelMessage(t *testing.T, k kit) {
	const wait = 500 * time.Millisecond
	q := k.name("cancel")
	gone, comes := item("p", `"gone"`), item("p", `"comes"`)
	gone.Delay, comes.Delay = durationpb.New(wait), durationpb.New(wait)
	gone.IdempotencyKey = "k"
	pushed := push(t, k, q, gone, comes).GetResults()
	req := &queuev1.DeleteMessageRequest{Queue: q, MessageId: pushed[0].GetMessageId()}

	first, err := k.DeleteMessage(t.Context(), req)
	require.NoError(t, err)
	second, err := k.DeleteMessage(t.Context(), req)
	require.NoError(t, err)
	again, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: q, Items: []*queuev1.PushItem{gone}})
	require.NoError(t, err)
	got, err := k.Pop(t.Context(), &queuev1.PopRequest{Queue: q, Batch: 10, Wait: durationpb.New(20 * time.Second)})
	require.NoError(t, err)

	for _, resp := range []*queuev1.DeleteMessageResponse{first, second} {
		require.True(t, resp.GetCancelled())
		require.Equal(t, pushed[0].GetMessageId(), resp.GetMessageId())
	}
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, again.GetResults()[0].GetStatus(), "its key stays used")
	require.Len(t, got.GetDeliveries(), 1)
	require.Equal(t, `"comes"`, string(got.GetDeliveries()[0].GetPayload()))
	_, err = k.LookupMessage(t.Context(), &queuev1.LookupMessageRequest{Queue: q, MessageId: pushed[0].GetMessageId()})
	require.Equal(t, "MESSAGE_NOT_FOUND", Code(err), "%v", err)
	came, err := k.DeleteMessage(t.Context(), &queuev1.DeleteMessageRequest{Queue: q, MessageId: pushed[1].GetMessageId()})
	require.NoError(t, err)
	require.False(t, came.GetCancelled())
	require.Equal(t, got.GetDeliveries()[0].GetMessageId(), came.GetMessageId(), "what came is deleted where it is")
}
