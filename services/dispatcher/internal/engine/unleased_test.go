package engine_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/store"
)

func TestAnAckWithoutALeaseMakesNoGroup(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	id := n.push("q", item("a", "1"))[0].GetMessageId()

	_, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Group: "typo", Settlements: []*queuev1.Settlement{{MessageId: id}}})

	require.ErrorIs(t, err, store.ErrGroupNotFound)
	var groups int
	require.NoError(t, n.db.QueryRow(t.Context(), "SELECT count(*) FROM dispatcher.groups").Scan(&groups))
	require.Zero(t, groups)
}

func TestAMalformedIDRefusesItsOwnSettlementOnly(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	id := n.push("q", item("a", "1"))[0].GetMessageId()
	n.pop(&queuev1.PopRequest{Queue: "q"})

	acked, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Settlements: []*queuev1.Settlement{{MessageId: "?"}, {MessageId: id}}})

	require.NoError(t, err)
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_REFUSED, acked.GetResults()[0].GetStatus())
	require.Equal(t, "message_id", acked.GetResults()[0].GetError().GetField())
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, acked.GetResults()[1].GetStatus())
}

func TestManyMessagesAreFoundByTheirProducersNamesInFewReads(t *testing.T) {
	t.Parallel()
	const messages = 300
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	var items []*queuev1.PushItem
	var settlements []*queuev1.Settlement
	for i := range messages {
		partition, id := fmt.Sprintf("p%d", i%50), fmt.Sprintf("c%d", i)
		items = append(items, &queuev1.PushItem{Partition: partition, ClientId: id, Payload: []byte(id)})
		settlements = append(settlements, &queuev1.Settlement{Partition: partition, ClientId: id})
	}
	n.push("q", items...)
	n.pop(&queuev1.PopRequest{Queue: "q", Batch: messages})
	settlements = append(settlements, &queuev1.Settlement{Partition: "p0", ClientId: "none"})
	n.count.Take()

	acked, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Settlements: settlements})

	require.NoError(t, err)
	for i, r := range acked.GetResults() {
		want := queuev1.AckStatus_ACK_STATUS_SETTLED
		if i == messages {
			want = queuev1.AckStatus_ACK_STATUS_REFUSED
		}
		require.Equal(t, want, r.GetStatus(), i)
	}
	require.LessOrEqual(t, len(n.count.Take()), 50)
	require.Empty(t, n.pop(&queuev1.PopRequest{Queue: "q"}).GetLease())
}
