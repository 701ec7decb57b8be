package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/store"
)

// dataKeys counts the data keys that segments are sealed with.
func (n *node) sealedWith() (keys int) {
	n.t.Helper()
	require.NoError(n.t, n.db.QueryRow(n.t.Context(), "SELECT count(DISTINCT key_id) FROM dispatcher.segments WHERE key_id <> 0").Scan(&keys))
	return keys
}

func TestANewDataKeySealsWhatComesOnAllDispatchersAndWhatWasThereIsRead(t *testing.T) {
	t.Parallel()
	url := database(t)
	a := newNode(t, url, nodeOptions{keys: master("m", 1)})
	b := newNode(t, url, nodeOptions{keys: master("m", 1)}) // no hint reaches it
	a.encrypted(nil)
	first := a.push("q", item("p", "0"), secretItem("1"), inAnHour("p", "later"))
	b.push("q", item("p", "1"))
	rejected := a.pop(&queuev1.PopRequest{Queue: "q", Partition: "secret-partition-1"})
	_, err := a.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: rejected.GetLease(), Settlements: []*queuev1.Settlement{
		{MessageId: first[1].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_REJECT},
	}})
	require.NoError(t, err)
	require.Equal(t, 1, a.sealedWith())

	before, err := a.control.FindQueue(t.Context(), ten, "q")
	require.NoError(t, err)
	now, err := a.control.RotateKey(t.Context(), byAdmin, "q")
	require.NoError(t, err)
	require.NotEqual(t, before.Key().ID(), now.Key().ID())
	b.push("q", item("p", "2")) // tells it
	b.push("q", item("p", "3"))
	var newest int32
	require.NoError(t, a.db.QueryRow(t.Context(), "SELECT key_id FROM dispatcher.segments ORDER BY base_offset DESC LIMIT 1").Scan(&newest))
	require.Equal(t, now.Key().ID(), newest, "at its next commit")
	again, err := b.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{secretItem("1")}})
	require.NoError(t, err)
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, again.GetResults()[0].GetStatus(), "idempotency keys are known by the same hash")
	b.comeDue()
	letters, err := b.control.ListDeadLetters(t.Context(), ten, "q", store.DeadLetterFilter{Limit: 9})
	require.NoError(t, err)
	require.Len(t, letters, 1)
	require.Equal(t, "secret-partition-1", letters[0].Partition)
	_, err = b.control.Redrive(t.Context(), byAdmin, "q", store.RedriveRequest{IDs: []store.DeadLetterID{letters[0].ID}})
	require.NoError(t, err)

	require.Equal(t, 2, a.sealedWith())
	fresh := newNode(t, url, nodeOptions{keys: master("m", 1)})
	require.Equal(t, []string{"0", "secret-payload-1", "1", "2", "3", "later", "secret-payload-1"}, fresh.all("q"))
}

func TestOnceTheMasterKeyIsRotatedTheOldOneCanBeDroppedAndEverythingIsRead(t *testing.T) {
	t.Parallel()
	url := database(t)
	old := newNode(t, url, nodeOptions{keys: master("m", 1)})
	old.encrypted(nil)
	old.push("q", item("p", "dead"), item("p", "1"), inAnHour("p", "2"))
	lease := old.pop(&queuev1.PopRequest{Queue: "q"})
	_, err := old.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: lease.GetLease(), Settlements: []*queuev1.Settlement{
		{MessageId: lease.GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_REJECT},
	}})
	require.NoError(t, err)
	_, err = old.control.RotateKey(t.Context(), byAdmin, "q")
	require.NoError(t, err)
	old.stop()

	both := newNode(t, url, nodeOptions{keys: master("n", 2) + "," + master("m", 1)})
	both.push("q", item("p", "3"))
	step, err := both.control.RewrapKeys(t.Context(), 0, 100)
	require.NoError(t, err)
	require.Equal(t, 3, step.Keys, "names, and two data keys")
	left, err := both.control.KeysOfOtherMasters(t.Context())
	require.NoError(t, err)
	require.Empty(t, left)
	both.stop()

	alone := newNode(t, url, nodeOptions{keys: master("n", 2)})
	letters, err := alone.control.ListDeadLetters(t.Context(), ten, "q", store.DeadLetterFilter{Limit: 9})
	require.NoError(t, err)
	require.Len(t, letters, 1)
	alone.comeDue()
	require.Equal(t, []string{"dead", "1", "3", "2"}, alone.all("q"))
	alone.stop()
	blind := newNode(t, url, nodeOptions{keys: master("m", 1)})
	_, err = blind.Pop(t.Context(), ten, &queuev1.PopRequest{Queue: "q"})
	require.ErrorIs(t, err, store.ErrKeyMissing)
}
