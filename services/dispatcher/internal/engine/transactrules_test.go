package engine_test

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/spool/spooltest"
)

func TestATransactionKnowsDuplicatesDelaysAndDeadLetters(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	first := n.push("out", keyedItem("x"))
	n.push("in", item("p", "1"))
	in := n.pop(&queuev1.PopRequest{Queue: "in"})

	resp := n.transact("k", settling("in", in.GetLease(), rejectOf(in.GetDeliveries()[0])),
		pushing("out", keyedItem("x"), inAnHour("p", "later"), &queuev1.PushItem{Payload: []byte("n"), IdempotencyKey: "new"},
			&queuev1.PushItem{Payload: []byte("n"), IdempotencyKey: "new"}))

	results := resp.GetResults()[1].GetPush().GetResults()
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, results[0].GetStatus())
	require.Equal(t, first[0].GetMessageId(), results[0].GetMessageId())
	require.NotNil(t, results[1].GetAvailableAt())
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_QUEUED, results[2].GetStatus())
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, results[3].GetStatus())
	require.Equal(t, results[2].GetMessageId(), results[3].GetMessageId())
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_DEAD_LETTERED, resp.GetResults()[0].GetAck().GetResults()[0].GetStatus())
	require.Equal(t, []string{"x", "n"}, payloads(n.pop(&queuev1.PopRequest{Queue: "out", Batch: 10})))
	require.Equal(t, 1, n.waiting())
	letters, err := n.control.ListDeadLetters(t.Context(), ten, "in", letterFilter())
	require.NoError(t, err)
	require.Len(t, letters, 1)
}

func TestATransactionObeysTheNewestConfigurationAndFollowsADeletedQueue(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.push("q", item("p", "0"))
	n.set(url, `{"max_message_bytes": 10}`)

	_, _, err := n.Transact(t.Context(), ten, "k", transacting(pushing("q", item("p", strings.Repeat("x", 11)))))
	refused := &engine.RefusedError{}
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "MESSAGE_TOO_LARGE", refused.Faults[0].Item.GetCode())

	other := newNode(t, url, nodeOptions{})
	_, err = other.control.DeleteQueue(t.Context(), byAdmin, "q", true)
	require.NoError(t, err)
	resp := n.transact("l", pushing("q", item("p", "renewed")))
	require.Zero(t, resp.GetResults()[0].GetPush().GetResults()[0].GetOffset())
	require.Equal(t, []string{"renewed"}, payloads(other.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})))
}

func TestATransactionOnAnEncryptedQueueIsNowhereInClear(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{keys: master("m", 1)})
	n.encrypted(nil)
	n.push("in", item("p", "1"))
	in := n.pop(&queuev1.PopRequest{Queue: "in"})

	n.transact("k", acking("in", in), pushing("q", secretItem("1")))

	requireNotAtRest(t, n.atRest(), "secret")
	require.Equal(t, []string{"secret-payload-1"}, payloads(n.pop(&queuev1.PopRequest{Queue: "q"})))
}

func TestATransactionThatPushesIsRefusedInMaintenanceAndNeverBuffered(t *testing.T) {
	t.Parallel()
	mode := &atomic.Bool{}
	s := newSpooling(t, database(t), spooltest.New(), mode, 1<<20)
	s.push("in", item("p", "1"), item("p", "2"))
	in := s.pop(&queuev1.PopRequest{Queue: "in", Batch: 2})
	mode.Store(true)
	require.Equal(t, []queuev1.PushStatus{buffered}, s.put(item("p", "b")))

	_, _, err := s.Transact(t.Context(), ten, "k", transacting(acking("in", in), pushing("q", item("p", "x"))))
	require.ErrorIs(t, err, engine.ErrMaintenance)
	s.transact("acks alone", settling("in", in.GetLease(), ackOf(in.GetDeliveries()[0])))
	mode.Store(false)
	s.awaitDrained()
	s.transact("k", settling("in", in.GetLease(), ackOf(in.GetDeliveries()[1])), pushing("q", item("p", "x")))

	require.Equal(t, []string{"b", "x"}, payloads(s.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})))
}

func TestTransactionsOfTenantsAreApart(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	for _, who := range []tenant.ID{ten, "other"} {
		_, replayed, err := n.Transact(t.Context(), who, "k", transacting(pushing("q", item("p", string(who)))))
		require.NoError(t, err)
		require.False(t, replayed)
	}

	require.Equal(t, []string{string(ten)}, payloads(n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})))
}

func TestAnEndingEngineRefusesTransactionsAndFinishesThoseOnTheirWay(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.push("q", item("p", "0"))
	var done, refused atomic.Int64
	var group sync.WaitGroup
	begun := make(chan struct{}, 64)
	for i := range 8 {
		group.Go(func() {
			for j := 0; ; j++ {
				_, _, err := n.Transact(context.WithoutCancel(t.Context()), ten, strconv.Itoa(i)+"/"+strconv.Itoa(j), transacting(pushing("q", item("p", "x"))))
				if err != nil {
					refused.Add(1)
					return
				}
				done.Add(1)
				select {
				case begun <- struct{}{}:
				default:
				}
			}
		})
	}
	<-begun
	n.stop()
	group.Wait()

	require.EqualValues(t, 8, refused.Load())
	require.Equal(t, int(done.Load())+1, count(t, url, "SELECT sum(head)::int FROM dispatcher.shards"))
}
