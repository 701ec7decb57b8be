package engine_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/store"
)

func master(id string, fill byte) string {
	return id + ":" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{fill}, 32))
}

var byAdmin = tenant.Caller{Tenant: ten, Actor: "tester"} //nolint:gochecknoglobals // a constant

// encrypted makes the encrypted queue "q".
func (n *node) encrypted(change func(*queue.Options)) {
	n.t.Helper()
	yes := true
	o := queue.Options{Encryption: &yes}
	if change != nil {
		change(&o)
	}
	_, err := n.control.Configure(n.t.Context(), byAdmin, "q", queue.Patch{Set: o})
	require.NoError(n.t, err)
}

// atRest is all that the dispatcher's tables hold, as text, bytes in hex.
func (n *node) atRest() string {
	n.t.Helper()
	rows, err := n.db.Query(n.t.Context(), `SELECT t.table_name,
		query_to_xml(format('SELECT t::text FROM dispatcher.%I t', t.table_name), true, false, '')::text
		FROM information_schema.tables t WHERE t.table_schema = 'dispatcher' ORDER BY 1`)
	require.NoError(n.t, err)
	defer rows.Close()
	var all strings.Builder
	for rows.Next() {
		var name, text string
		require.NoError(n.t, rows.Scan(&name, &text))
		all.WriteString(name + ": " + text + "\n")
	}
	require.NoError(n.t, rows.Err())
	return all.String()
}

func requireNotAtRest(t *testing.T, dump string, secrets ...string) {
	t.Helper()
	for _, s := range secrets {
		require.NotContains(t, dump, s)
		require.NotContains(t, dump, hex.EncodeToString([]byte(s)), s)
	}
}

func secretItem(i string) *queuev1.PushItem {
	return &queuev1.PushItem{
		Partition: "secret-partition-" + i, Payload: []byte("secret-payload-" + i), ClientId: "secret-client-" + i, ContentType: "text/secret-type",
		Headers: map[string]string{"secret-name": "secret-value-" + i}, IdempotencyKey: "secret-key-" + i,
	}
}

func TestNothingOfAnEncryptedQueueIsInTheDatabaseInClear(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{keys: master("m", 1)})
	n.encrypted(nil)
	n.push("q", secretItem("1"), secretItem("2"), secretItem("3"))
	requireNotAtRest(t, n.atRest(), "secret")

	again, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{secretItem("1")}})
	require.NoError(t, err)
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, again.GetResults()[0].GetStatus())

	// Another dispatcher reads it from the database: one acked, one failed with a reason, one rejected.
	other := newNode(t, url, nodeOptions{keys: master("m", 1)})
	got := other.pop(&queuev1.PopRequest{Queue: "q", Batch: 10, Partitions: 10})
	require.Equal(t, []string{"secret-payload-1", "secret-payload-2", "secret-payload-3"}, payloads(got))
	require.Equal(t, "secret-value-1", got.GetDeliveries()[0].GetHeaders()["secret-name"])
	_, err = other.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: got.GetLease(), Settlements: []*queuev1.Settlement{
		{MessageId: got.GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_ACK},
		{MessageId: got.GetDeliveries()[1].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_NACK, Reason: "secret-reason-2", Delay: durationpb.New(0)},
		{MessageId: got.GetDeliveries()[2].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_REJECT, Reason: "secret-reason-3"},
	}})
	require.NoError(t, err)
	requireNotAtRest(t, n.atRest(), "secret")

	letters, err := n.control.ListDeadLetters(t.Context(), ten, "q", store.DeadLetterFilter{Limit: 10})
	require.NoError(t, err)
	require.Len(t, letters, 1)
	require.Equal(t, "secret-partition-3", letters[0].Partition)
	require.Equal(t, len("secret-payload-3"), letters[0].PayloadBytes)
	require.Nil(t, letters[0].Payload)
	letter, err := n.control.GetDeadLetter(t.Context(), ten, "q", letters[0].ID)
	require.NoError(t, err)
	require.Equal(t, "secret-payload-3", string(letter.Payload))
	require.Equal(t, "secret-reason-3", letter.LastError)
	require.Equal(t, "secret-client-3", letter.ClientID)
	done, err := n.control.Redrive(t.Context(), byAdmin, "q", store.RedriveRequest{IDs: []store.DeadLetterID{letter.ID}})
	require.NoError(t, err)
	require.Equal(t, 1, done.Redriven)
	requireNotAtRest(t, n.atRest(), "secret")

	delayed := secretItem("4")
	delayed.Delay = seconds(60)
	waits := n.push("q", delayed)
	require.Equal(t, 1, n.waiting())
	requireNotAtRest(t, n.atRest(), "secret")
	id, err := message.ParsePendingID(waits[0].GetMessageId())
	require.NoError(t, err)
	q, err := n.control.FindQueue(t.Context(), ten, "q")
	require.NoError(t, err)
	pending, err := other.control.FindPending(t.Context(), q, id)
	require.NoError(t, err)
	require.Equal(t, "secret-payload-4", string(pending.Payload))
	other.comeDue()
	requireNotAtRest(t, n.atRest(), "secret")
	got = n.pop(&queuev1.PopRequest{Queue: "q", Partition: "secret-partition-4", Wait: durationpb.New(2e9)})
	require.Equal(t, []string{"secret-payload-4"}, payloads(got))

	// By name, which only a hash stands for.
	got = other.pop(&queuev1.PopRequest{Queue: "q", Partition: "secret-partition-3", Wait: durationpb.New(2e9)})
	require.Equal(t, []string{"secret-payload-3"}, payloads(got))
	found, ok, err := n.control.FindByClientID(t.Context(), q, "secret-partition-2", "secret-client-2")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "secret-payload-2", string(found.Payload))
	peeked, err := n.control.Peek(t.Context(), q, store.Peek{Partition: "secret-partition-2", Limit: 5, MaxBytes: 1 << 20})
	require.NoError(t, err)
	require.Len(t, peeked.Messages, 1)
	require.Equal(t, "secret-payload-2", string(peeked.Messages[0].Payload))
	_, err = n.control.ListPartitions(t.Context(), q, "", math.MaxInt64, 10)
	require.ErrorIs(t, err, store.ErrNotListed)
}

func TestAMissingKeyBlocksItsQueueAndNoOtherAndMakesNoDeadLetter(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{keys: master("m", 1)})
	one := 1
	n.encrypted(func(o *queue.Options) { o.MaxAttempts = &one })
	n.push("q", item("p", "waits"))
	got := n.pop(&queuev1.PopRequest{Queue: "q", Lease: seconds(1)})
	require.Len(t, got.GetDeliveries(), 1)
	n.stop()

	for _, keys := range []string{"", master("m", 2), master("other", 1)} { // none, another under its name, another
		blind := newNode(t, url, nodeOptions{keys: keys})
		_, err := blind.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item("p", "no")}})
		require.ErrorIs(t, err, store.ErrKeyMissing)
		_, err = blind.Pop(t.Context(), ten, &queuev1.PopRequest{Queue: "q"})
		require.ErrorIs(t, err, store.ErrKeyMissing)
		_, err = blind.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: got.GetLease(), AckRest: true})
		require.ErrorIs(t, err, store.ErrKeyMissing)
		blind.push("clear", item("p", "goes on"))
		require.GreaterOrEqual(t, blind.metric("encryption_key_missing_total"), 3.0)
		require.Error(t, blind.KeysMissing(), "it is told")
		got := blind.pop(&queuev1.PopRequest{Queue: "clear"})
		require.Equal(t, []string{"goes on"}, payloads(got))
		blind.ackAll("clear", got.GetLease())
		eventually(t, func() error { // its last attempt ends here, by a sweep
			expired, err := blind.store.ExpiredLeases(t.Context(), 10)
			require.NoError(t, err)
			return wantf(len(expired) > 0, "the lease has not run out")
		})
		expired, err := blind.store.ExpiredLeases(t.Context(), 10)
		require.NoError(t, err)
		require.ErrorIs(t, blind.Reclaim(t.Context(), expired[0].GroupShard), store.ErrKeyMissing)
		letters, err := blind.control.ListDeadLetters(t.Context(), ten, "q", store.DeadLetterFilter{Limit: 1})
		require.NoError(t, err)
		require.Empty(t, letters)
		blind.stop()
	}

	n = newNode(t, url, nodeOptions{keys: master("m", 1)})
	n.push("q", item("p", "after"))
	eventually(t, func() error {
		expired, err := n.store.ExpiredLeases(t.Context(), 10)
		require.NoError(t, err)
		for _, x := range expired {
			require.NoError(t, n.Reclaim(t.Context(), x.GroupShard))
		}
		letters, err := n.control.ListDeadLetters(t.Context(), ten, "q", store.DeadLetterFilter{Limit: 1})
		require.NoError(t, err)
		return wantf(len(letters) == 1 && letters[0].Partition == "p", "%d dead letters", len(letters))
	})
	require.Equal(t, []string{"after"}, payloads(n.pop(&queuev1.PopRequest{Queue: "q", Wait: seconds(2)})))
}

func TestABodyThatWasMovedOrChangedIsRefused(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{keys: master("m", 1)})
	n.encrypted(nil)
	n.push("q", item("p", "first"))
	n.push("q", item("p", "later"))
	swap := `UPDATE dispatcher.segments a SET body = b.body FROM dispatcher.segments b
		WHERE a.shard_id = b.shard_id AND a.base_offset = 1 - b.base_offset`
	for _, spoil := range []string{swap, `UPDATE dispatcher.segments SET body = set_byte(body, 30, get_byte(body, 30) # 1)`} {
		_, err := n.db.Exec(t.Context(), spoil)
		require.NoError(t, err)
		other := newNode(t, url, nodeOptions{keys: master("m", 1)})
		_, err = other.Pop(t.Context(), ten, &queuev1.PopRequest{Queue: "q"})
		require.ErrorIs(t, err, segment.ErrCorrupt)
		other.stop()
		_, err = n.db.Exec(t.Context(), spoil) // and back
		require.NoError(t, err)
	}
	other := newNode(t, url, nodeOptions{keys: master("m", 1)})
	require.Equal(t, []string{"first", "later"}, payloads(other.pop(&queuev1.PopRequest{Queue: "q", Batch: 2, Wait: seconds(2)})))
}

func TestEncryptionIsFixedAtCreationAndNeedsAKey(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	yes, no := true, false
	_, err := n.control.Configure(t.Context(), byAdmin, "q", queue.Patch{Set: queue.Options{Encryption: &yes}})
	require.ErrorIs(t, err, &invalid.Error{Code: invalid.NoEncryptionKey, Field: "encryption"})
	_, err = n.control.FindQueue(t.Context(), ten, "q")
	require.ErrorIs(t, err, store.ErrQueueNotFound)

	n.push("q", item("p", "x"))
	_, err = n.control.Configure(t.Context(), byAdmin, "q", queue.Patch{Set: queue.Options{Encryption: &yes}})
	require.ErrorIs(t, err, &invalid.Error{Code: invalid.OptionFixed, Field: "encryption"})
	_, err = n.control.Configure(t.Context(), byAdmin, "q", queue.Patch{Set: queue.Options{Encryption: &no}})
	require.NoError(t, err)
}

func TestDeadLettersOfAnEncryptedQueueGoToNoQueueInClear(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{keys: master("m", 1)})
	n.encrypted(nil)
	n.push("q", item("p", "x"))
	got := n.pop(&queuev1.PopRequest{Queue: "q"})
	_, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: got.GetLease(), Settlements: []*queuev1.Settlement{
		{MessageId: got.GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_REJECT},
	}})
	require.NoError(t, err)
	_, err = n.control.DeleteQueue(t.Context(), byAdmin, "q", true)
	require.NoError(t, err)
	_, err = n.control.Configure(t.Context(), byAdmin, "q", queue.Patch{})
	require.NoError(t, err)
	letters, err := n.control.ListDeadLetters(t.Context(), ten, "q", store.DeadLetterFilter{Limit: 1})
	require.NoError(t, err)
	ids := []store.DeadLetterID{letters[0].ID}
	_, err = n.control.Redrive(t.Context(), byAdmin, "q", store.RedriveRequest{IDs: ids})
	require.ErrorIs(t, err, store.ErrInClear)

	_, err = n.control.DeleteQueue(t.Context(), byAdmin, "q", true)
	require.NoError(t, err)
	n.encrypted(nil)
	done, err := n.control.Redrive(t.Context(), byAdmin, "q", store.RedriveRequest{IDs: ids})
	require.NoError(t, err)
	require.Equal(t, 1, done.Redriven)
}

func TestALogIsCompressedAsItsQueueSays(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	text := strings.Repeat("all the same ", 200)
	codec := func(config string) (codec segment.Codec, size int) {
		n.set(url, config)
		n.push("q", item("p", text)) // read with the configuration before
		n.push("q", item("p", text))
		require.NoError(t, n.db.QueryRow(t.Context(), `SELECT codec, octet_length(body) FROM dispatcher.segments
			ORDER BY base_offset DESC LIMIT 1`).Scan(&codec, &size))
		return codec, size
	}
	for config, want := range map[string]segment.Codec{`{}`: segment.CodecZstd, `{"compression":"none"}`: segment.CodecRaw} {
		got, size := codec(config)
		require.Equal(t, want, got, config)
		require.Equal(t, want == segment.CodecRaw, size > len(text), config)
	}
}
