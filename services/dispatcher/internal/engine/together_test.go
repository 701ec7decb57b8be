package engine_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/engine"
)

const (
	settled  = queuev1.AckStatus_ACK_STATUS_SETTLED
	already  = queuev1.AckStatus_ACK_STATUS_ALREADY_SETTLED
	refused  = queuev1.AckStatus_ACK_STATUS_REFUSED
	dead     = queuev1.AckStatus_ACK_STATUS_DEAD_LETTERED
	returned = queuev1.AckStatus_ACK_STATUS_RETURNED
)

func ackOf(d *queuev1.Delivery) *queuev1.Settlement {
	return &queuev1.Settlement{MessageId: d.GetMessageId()}
}

func nackOf(d *queuev1.Delivery) *queuev1.Settlement {
	return &queuev1.Settlement{MessageId: d.GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_NACK, Delay: seconds(0)}
}

func rejectOf(d *queuev1.Delivery) *queuev1.Settlement {
	return &queuev1.Settlement{MessageId: d.GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_REJECT, Reason: "bad"}
}

func (n *node) ack(req *queuev1.AckRequest) *queuev1.AckResponse {
	n.t.Helper()
	resp, err := n.Ack(n.t.Context(), ten, req)
	require.NoError(n.t, err)
	return resp
}

func statuses(results []*queuev1.AckResult) []queuev1.AckStatus {
	var list []queuev1.AckStatus
	for _, r := range results {
		list = append(list, r.GetStatus())
	}
	return list
}

func codesOf(results []*queuev1.AckResult) []string {
	var list []string
	for _, r := range results {
		list = append(list, r.GetError().GetCode())
	}
	return list
}

func TestTheRestIsWhatIsNotNamed(t *testing.T) {
	t.Parallel()
	for _, withPop := range []bool{false, true} {
		n := newNode(t, database(t), nodeOptions{})
		n.push("q", item("a", "1"), item("a", "2"), item("b", "3"))
		first := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 9})
		req := &queuev1.AckRequest{
			Queue: "q", Lease: first.GetLease(), Settlements: []*queuev1.Settlement{nackOf(first.GetDeliveries()[0])}, AckRest: true,
		}

		var got []*queuev1.AckResult
		var rest int32
		var again *queuev1.PopResponse
		if withPop {
			again = n.pop(&queuev1.PopRequest{Queue: "q", Batch: 9, Wait: seconds(5), Settle: req})
			got, rest = again.GetSettled(), again.GetRestAcked()
		} else {
			resp := n.ack(req)
			got, rest = resp.GetResults(), resp.GetRestAcked()
			again = n.pop(&queuev1.PopRequest{Queue: "q", Batch: 9, Wait: seconds(5)})
		}

		require.Equal(t, []queuev1.AckStatus{settled}, statuses(got))
		require.EqualValues(t, 1, rest, "the other partition; the second of the same one comes back")
		require.Equal(t, []string{"1", "2"}, payloads(again))
		require.EqualValues(t, 2, again.GetDeliveries()[0].GetAttempt())
		require.EqualValues(t, 1, again.GetDeliveries()[1].GetAttempt())
	}
}

func TestTheRestIsNotAckedBesideARefusal(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", &queuev1.PushItem{Partition: "a", ClientId: "c", Payload: []byte("1")}, item("b", "2"))
	n.push("other", item("a", "x"))
	foreign := n.pop(&queuev1.PopRequest{Queue: "other"}).GetDeliveries()[0]
	held := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 9})
	nack := func(s *queuev1.Settlement) *queuev1.Settlement {
		s.Action = queuev1.AckAction_ACK_ACTION_NACK
		return s
	}

	for name, wrong := range map[string]*queuev1.Settlement{
		"another partition": nack(&queuev1.Settlement{ClientId: "c", Partition: "b"}),
		"another name":      nack(&queuev1.Settlement{ClientId: "C", Partition: "a"}),
		"another queue's":   nackOf(foreign),
		"no id":             nack(&queuev1.Settlement{MessageId: "?"}),
	} {
		resp := n.ack(&queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{wrong}, AckRest: true})
		require.Equal(t, []queuev1.AckStatus{refused}, statuses(resp.GetResults()), name)
		require.Zero(t, resp.GetRestAcked(), name)
	}
	all := n.ack(&queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), AckRest: true})

	require.EqualValues(t, 2, all.GetRestAcked(), "all of it was held to the end")
}

func TestNoPartOfALeaseIsAckedBesideAnothersRefusal(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	makeQueue(t, n, 4)
	for i := range 20 {
		n.push("q", item(fmt.Sprintf("p%d", i), strconv.Itoa(i)))
	}
	held := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 100})
	first := held.GetDeliveries()[0]
	n.ack(&queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{ackOf(first)}})

	beside := n.ack(&queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{nackOf(first)}, AckRest: true})
	alone := n.ack(&queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{ackOf(first)}, AckRest: true})

	require.Equal(t, []string{"ALREADY_SETTLED"}, codesOf(beside.GetResults()))
	require.Zero(t, beside.GetRestAcked())
	require.Equal(t, []queuev1.AckStatus{already}, statuses(alone.GetResults()))
	require.EqualValues(t, len(held.GetDeliveries())-1, alone.GetRestAcked())
}

func TestWhatLiesBehindAFailedMessageIsReturnedInWhateverOrderItIsSaid(t *testing.T) {
	t.Parallel()
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		n := newNode(t, database(t), nodeOptions{})
		n.push("q", item("a", "1"), item("a", "2"), item("a", "3"))
		held := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 9})
		says := []*queuev1.Settlement{ackOf(held.GetDeliveries()[0]), nackOf(held.GetDeliveries()[1]), ackOf(held.GetDeliveries()[2])}
		req := &queuev1.AckRequest{Queue: "q", Lease: held.GetLease()}
		var want []queuev1.AckStatus
		for _, i := range order {
			req.Settlements = append(req.Settlements, says[i])
			want = append(want, []queuev1.AckStatus{settled, settled, returned}[i])
		}

		resp := n.ack(req)
		again := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 9, Wait: seconds(5)})

		require.Equal(t, want, statuses(resp.GetResults()))
		require.Equal(t, []string{"2", "3"}, payloads(again))
		require.EqualValues(t, 1, again.GetDeliveries()[1].GetAttempt(), "it came back uncharged")
	}
}

func TestWhoAskedForAnythingButAnAckIsToldThatItWasSettled(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("a", "1"), item("b", "2"), item("c", "3"))
	held := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 9})
	d := held.GetDeliveries()
	one := n.ack(&queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{ackOf(d[0]), rejectOf(d[1])}})

	two := n.ack(&queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{nackOf(d[0]), rejectOf(d[0]), ackOf(d[0])}})
	unleased := n.ack(&queuev1.AckRequest{Queue: "q", Settlements: []*queuev1.Settlement{rejectOf(d[0]), ackOf(d[0])}})

	require.Equal(t, []queuev1.AckStatus{settled, dead}, statuses(one.GetResults()))
	require.Equal(t, []queuev1.AckStatus{refused, refused, already}, statuses(two.GetResults()))
	require.Equal(t, []string{"ALREADY_SETTLED", "ALREADY_SETTLED", ""}, codesOf(two.GetResults()))
	require.Equal(t, []string{"ALREADY_SETTLED", ""}, codesOf(unleased.GetResults()))
}

func TestARepeatedAckByNameIsAlreadySettled(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", &queuev1.PushItem{Partition: "a", ClientId: "c", Payload: []byte("1")}, item("a", "2"))
	held := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 9})
	byName := &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{{Partition: "a", ClientId: "c"}}}

	first, open := n.ack(byName), n.ack(byName)
	n.ackAll("q", held.GetLease())
	gone := n.ack(byName)
	byName.Settlements[0].ClientId = "none"
	_, none := n.Ack(t.Context(), ten, byName)
	_, rest := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), AckRest: true})

	require.Equal(t, []queuev1.AckStatus{settled}, statuses(first.GetResults()))
	require.Equal(t, []queuev1.AckStatus{already}, statuses(open.GetResults()))
	require.Equal(t, []queuev1.AckStatus{already}, statuses(gone.GetResults()))
	require.Equal(t, held.GetDeliveries()[0].GetMessageId(), gone.GetResults()[0].GetMessageId())
	require.ErrorIs(t, none, engine.ErrStaleEpoch)
	require.ErrorIs(t, rest, engine.ErrStaleEpoch, "nothing remembers what a lease held")
}

func TestALeaseThatIsHeldSaysWhichMessagesItDoesNotHold(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("a", "1"), item("b", "2"))
	one, two := n.pop(&queuev1.PopRequest{Queue: "q"}), n.pop(&queuev1.PopRequest{Queue: "q"})

	resp := n.ack(&queuev1.AckRequest{Queue: "q", Lease: one.GetLease(), Settlements: []*queuev1.Settlement{ackOf(two.GetDeliveries()[0])}})

	require.Equal(t, []string{"NOT_LEASED"}, codesOf(resp.GetResults()))
}

func TestALeaseOfAnotherGroupThanIsSaidIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("a", "1"))
	held := n.pop(&queuev1.PopRequest{Queue: "q", Group: "g"})
	req := &queuev1.AckRequest{Queue: "q", Group: "h", Lease: held.GetLease(), AckRest: true}

	_, err := n.Ack(t.Context(), ten, req)
	_, popped := n.Pop(t.Context(), ten, &queuev1.PopRequest{Queue: "q", Group: "g", Settle: req})
	done := n.pop(&queuev1.PopRequest{Queue: "q", Group: "h", Settle: &queuev1.AckRequest{Lease: held.GetLease(), AckRest: true}})

	want := &invalid.Error{Code: invalid.GroupMismatch, Field: "group"}
	require.ErrorIs(t, err, want)
	require.ErrorIs(t, popped, want)
	require.EqualValues(t, 1, done.GetRestAcked(), "a pop of one group may settle a lease of another")
}
