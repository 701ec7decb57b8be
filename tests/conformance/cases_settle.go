package conformance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

func settle(t *testing.T, k kit, queue, lease string, s ...*queuev1.Settlement) *queuev1.AckResponse {
	t.Helper()
	resp, err := k.Ack(t.Context(), &queuev1.AckRequest{Queue: queue, Lease: lease, Settlements: s})
	require.NoError(t, err)
	require.Len(t, resp.GetResults(), len(s))
	return resp
}

func nackReturns(t *testing.T, k kit) {
	q := k.name("nack")
	push(t, k, q, item("p", `1`))
	got := pop(t, k, q, 1)

	resp := settle(t, k, q, got.GetLease(), &queuev1.Settlement{
		MessageId: got.GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_NACK, Delay: durationpb.New(0), Reason: "not now",
	})

	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, resp.GetResults()[0].GetStatus())
	again := pop(t, k, q, 1)
	require.Equal(t, []string{"1"}, payloadsOf(again))
	require.EqualValues(t, 2, again.GetDeliveries()[0].GetAttempt())
}

func deadLetters(t *testing.T, k kit) {
	q := k.name("dead")
	push(t, k, q, item("p", `{"big":9007199254740993}`))
	got := pop(t, k, q, 1)
	resp := settle(t, k, q, got.GetLease(), &queuev1.Settlement{
		MessageId: got.GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_REJECT, Reason: "broken",
	})
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_DEAD_LETTERED, resp.GetResults()[0].GetStatus())

	listed, err := k.ListDeadLetters(t.Context(), &queuev1.ListDeadLettersRequest{Queue: q})
	require.NoError(t, err)
	require.Len(t, listed.GetDeadLetters(), 1)
	letter := listed.GetDeadLetters()[0]
	require.Equal(t, "broken", letter.GetReason())
	require.Empty(t, letter.GetPayload())
	shown, err := k.GetDeadLetter(t.Context(), &queuev1.GetDeadLetterRequest{Queue: q, Id: letter.GetId()})
	require.NoError(t, err)
	require.Equal(t, `{"big":9007199254740993}`, string(shown.GetDeadLetter().GetPayload()))

	for _, want := range []int32{1, 0} {
		redriven, err := k.RedriveDeadLetters(t.Context(), &queuev1.RedriveDeadLettersRequest{Queue: q, Ids: []string{letter.GetId()}})
		require.NoError(t, err)
		require.Equal(t, want, redriven.GetRedriven())
	}
	require.Equal(t, []string{`{"big":9007199254740993}`}, payloadsOf(pop(t, k, q, 10)))
	_, err = k.RedriveDeadLetters(t.Context(), &queuev1.RedriveDeadLettersRequest{Queue: q})
	require.Equal(t, "MISSING_FIELD", Code(err), "%v", err)
}

func purge(t *testing.T, k kit) {
	q := k.name("purge")
	push(t, k, q, item("p", `1`), item("p", `2`), item("p", `3`))
	got := pop(t, k, q, 3)
	for _, d := range got.GetDeliveries() {
		settle(t, k, q, got.GetLease(), &queuev1.Settlement{MessageId: d.GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_REJECT})
	}
	listed, err := k.ListDeadLetters(t.Context(), &queuev1.ListDeadLettersRequest{Queue: q})
	require.NoError(t, err)
	require.Len(t, listed.GetDeadLetters(), 3)
	first, second := listed.GetDeadLetters()[0].GetId(), listed.GetDeadLetters()[1].GetId()
	_, err = k.RedriveDeadLetters(t.Context(), &queuev1.RedriveDeadLettersRequest{Queue: q, Ids: []string{second}})
	require.NoError(t, err)
	ask := func(req *queuev1.PurgeDeadLettersRequest) *queuev1.PurgeDeadLettersResponse {
		t.Helper()
		req.Queue = q
		resp, err := k.PurgeDeadLetters(t.Context(), req)
		require.NoError(t, err)
		return resp
	}

	done := ask(&queuev1.PurgeDeadLettersRequest{Ids: []string{first, second}})
	require.EqualValues(t, 1, done.GetPurged())
	require.EqualValues(t, 1, done.GetAlreadyRedriven())
	require.Equal(t, []string{first}, ask(&queuev1.PurgeDeadLettersRequest{Ids: []string{first}}).GetNotFound())
	require.Zero(t, ask(&queuev1.PurgeDeadLettersRequest{Group: "other"}).GetPurged())
	require.Zero(t, ask(&queuev1.PurgeDeadLettersRequest{All: true, FailedBefore: timestamppb.New(time.Unix(1, 0))}).GetPurged())
	done = ask(&queuev1.PurgeDeadLettersRequest{All: true, IncludeRedriven: true, Limit: 1})
	require.EqualValues(t, 1, done.GetPurged())
	require.True(t, done.GetMore())
	require.EqualValues(t, 1, ask(&queuev1.PurgeDeadLettersRequest{All: true, IncludeRedriven: true}).GetPurged())
	listed, err = k.ListDeadLetters(t.Context(), &queuev1.ListDeadLettersRequest{Queue: q, IncludeRedriven: true})
	require.NoError(t, err)
	require.Empty(t, listed.GetDeadLetters())
	_, err = k.PurgeDeadLetters(t.Context(), &queuev1.PurgeDeadLettersRequest{Queue: q})
	require.Equal(t, "MISSING_FIELD", Code(err), "%v", err)
}

func staleLease(t *testing.T, k kit) {
	q := k.name("stale")
	push(t, k, q, item("p", `1`))
	got := pop(t, k, q, 1)
	_, err := k.Release(t.Context(), &queuev1.ReleaseRequest{Queue: q, Lease: got.GetLease()})
	require.NoError(t, err)
	next := pop(t, k, q, 1)

	_, err = k.Ack(t.Context(), &queuev1.AckRequest{Queue: q, Lease: got.GetLease(), AckRest: true})

	require.Equal(t, "STALE_EPOCH", Code(err), "%v", err)
	ackAll(t, k, q, next)
}

func repeatedAck(t *testing.T, k kit) {
	q := k.name("repeat")
	push(t, k, q, item("p", `1`), item("p", `2`))
	got := pop(t, k, q, 2)
	first := &queuev1.Settlement{MessageId: got.GetDeliveries()[0].GetMessageId()}
	settle(t, k, q, got.GetLease(), first)

	again := settle(t, k, q, got.GetLease(), first)

	require.Equal(t, queuev1.AckStatus_ACK_STATUS_ALREADY_SETTLED, again.GetResults()[0].GetStatus())
}

func restIsNotNamed(t *testing.T, k kit) {
	q := k.name("rest")
	push(t, k, q, item("a", `1`), item("b", `2`), item("a", `3`))
	got := pop(t, k, q, 3)
	require.Len(t, got.GetDeliveries(), 3)
	nack := &queuev1.Settlement{
		MessageId: got.GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_NACK, Delay: durationpb.New(0),
	}

	resp, err := k.Ack(t.Context(), &queuev1.AckRequest{Queue: q, Lease: got.GetLease(), Settlements: []*queuev1.Settlement{nack}, AckRest: true})

	require.NoError(t, err)
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, resp.GetResults()[0].GetStatus())
	require.EqualValues(t, 1, resp.GetRestAcked())
	require.Equal(t, []string{"1", "3"}, payloadsOf(pop(t, k, q, 3)))
}

func restBesideRefusal(t *testing.T, k kit) {
	q, other := k.name("misnamed"), k.name("foreign")
	push(t, k, q, item("a", `1`))
	push(t, k, other, item("a", `2`))
	got := pop(t, k, q, 1)
	wrong := &queuev1.Settlement{MessageId: pop(t, k, other, 1).GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_NACK}

	resp, err := k.Ack(t.Context(), &queuev1.AckRequest{Queue: q, Lease: got.GetLease(), Settlements: []*queuev1.Settlement{wrong}, AckRest: true})

	require.NoError(t, err)
	require.Equal(t, "NOT_LEASED", resp.GetResults()[0].GetError().GetCode())
	require.Zero(t, resp.GetRestAcked())
	ackAll(t, k, q, got)
}

func failureStopsPartition(t *testing.T, k kit) {
	q := k.name("behind")
	push(t, k, q, item("a", `1`), item("a", `2`), item("a", `3`))
	got := pop(t, k, q, 3)
	settlements := make([]*queuev1.Settlement, 3)
	for i, d := range got.GetDeliveries() {
		settlements[2-i] = &queuev1.Settlement{MessageId: d.GetMessageId()}
	}
	settlements[1].Action, settlements[1].Delay = queuev1.AckAction_ACK_ACTION_NACK, durationpb.New(0)

	resp := settle(t, k, q, got.GetLease(), settlements...)

	require.Equal(t, queuev1.AckStatus_ACK_STATUS_RETURNED, resp.GetResults()[0].GetStatus())
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, resp.GetResults()[1].GetStatus())
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, resp.GetResults()[2].GetStatus())
	again := pop(t, k, q, 3)
	require.Equal(t, []string{"2", "3"}, payloadsOf(again))
	require.EqualValues(t, 1, again.GetDeliveries()[1].GetAttempt())
}

func lateNack(t *testing.T, k kit) {
	q := k.name("late")
	push(t, k, q, item("a", `1`), item("a", `2`))
	got := pop(t, k, q, 2)
	id := got.GetDeliveries()[0].GetMessageId()
	settle(t, k, q, got.GetLease(), &queuev1.Settlement{MessageId: id})

	for _, action := range []queuev1.AckAction{queuev1.AckAction_ACK_ACTION_NACK, queuev1.AckAction_ACK_ACTION_REJECT} {
		resp := settle(t, k, q, got.GetLease(), &queuev1.Settlement{MessageId: id, Action: action})
		require.Equal(t, queuev1.AckStatus_ACK_STATUS_REFUSED, resp.GetResults()[0].GetStatus())
		require.Equal(t, "ALREADY_SETTLED", resp.GetResults()[0].GetError().GetCode())
	}
}

func leaseOfAnotherGroup(t *testing.T, k kit) {
	q := k.name("other-group")
	push(t, k, q, item("a", `1`))
	got := pop(t, k, q, 1)

	_, err := k.Ack(t.Context(), &queuev1.AckRequest{Queue: q, Group: "h", Lease: got.GetLease(), AckRest: true})

	require.Equal(t, "GROUP_MISMATCH", Code(err), "%v", err)
	ackAll(t, k, q, got)
}

func releaseReturns(t *testing.T, k kit) {
	q := k.name("release")
	push(t, k, q, item("p", `1`))
	got := pop(t, k, q, 1)

	released, err := k.Release(t.Context(), &queuev1.ReleaseRequest{Queue: q, Lease: got.GetLease()})

	require.NoError(t, err)
	require.EqualValues(t, 1, released.GetReleased())
	again := pop(t, k, q, 1)
	require.Equal(t, []string{"1"}, payloadsOf(again))
}

func renewLater(t *testing.T, k kit) {
	q := k.name("renew")
	push(t, k, q, item("p", `1`))
	got := pop(t, k, q, 1)

	renewed, err := k.Renew(t.Context(), &queuev1.RenewRequest{Queue: q, Lease: got.GetLease(), Duration: durationpb.New(time.Hour)})

	require.NoError(t, err)
	require.True(t, renewed.GetLeaseExpiresAt().AsTime().After(got.GetLeaseExpiresAt().AsTime()))
}

func settleAndPop(t *testing.T, k kit) {
	q := k.name("chain")
	push(t, k, q, item("p", `1`), item("p", `2`))
	got := pop(t, k, q, 1)

	next, err := k.Pop(t.Context(), &queuev1.PopRequest{
		Queue: q, Wait: durationpb.New(5 * time.Second),
		Settle: &queuev1.AckRequest{Lease: got.GetLease(), Settlements: []*queuev1.Settlement{{MessageId: got.GetDeliveries()[0].GetMessageId()}}},
	})

	require.NoError(t, err)
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, next.GetSettled()[0].GetStatus())
	require.Equal(t, []string{"2"}, payloadsOf(next))
}

func sharedMode(t *testing.T, k kit) {
	q := k.name("shared")
	push(t, k, q, item("p", `1`), item("p", `2`))
	take := func() *queuev1.PopResponse {
		resp, err := k.Pop(t.Context(), &queuev1.PopRequest{
			Queue: q, Group: "g", Batch: 1, Wait: durationpb.New(5 * time.Second),
			GroupOptions: &queuev1.GroupOptions{Mode: queuev1.GroupMode_GROUP_MODE_SHARED},
		})
		require.NoError(t, err)
		require.Len(t, resp.GetDeliveries(), 1)
		return resp
	}
	first, second := take(), take()

	for _, popped := range []*queuev1.PopResponse{second, first} {
		resp, err := k.Ack(t.Context(), &queuev1.AckRequest{Queue: q, Group: "g", Lease: popped.GetLease(), AckRest: true})
		require.NoError(t, err)
		require.EqualValues(t, 1, resp.GetRestAcked())
	}
}

func groupMismatch(t *testing.T, k kit) {
	q := k.name("mismatch")
	_, err := k.CreateGroup(t.Context(), &queuev1.CreateGroupRequest{
		Queue: q, Group: "g", Options: &queuev1.GroupOptions{Mode: queuev1.GroupMode_GROUP_MODE_SHARED},
	})
	require.NoError(t, err)

	_, err = k.Pop(t.Context(), &queuev1.PopRequest{
		Queue: q, Group: "g", GroupOptions: &queuev1.GroupOptions{Mode: queuev1.GroupMode_GROUP_MODE_ORDERED},
	})

	require.Equal(t, "GROUP_MISMATCH", Code(err), "%v", err)
}
