package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/store"
)

// moveDue moves what is due, as the loop does, and returns what it was told of shards that cannot be moved.
func (n *node) moveDue() (withheld []store.BlockedShard) {
	n.t.Helper()
	var except []message.ShardID
	for {
		due, err := n.control.FlushDue(n.t.Context(), time.Time{}, except)
		require.NoError(n.t, err)
		n.Arrived(due)
		for _, b := range due.Blocked {
			n.Withheld(b)
			except = append(except, b.Shard)
			withheld = append(withheld, b)
		}
		if !due.More {
			return withheld
		}
	}
}

func (n *node) allDue() {
	n.t.Helper()
	_, err := n.db.Exec(n.t.Context(), "UPDATE dispatcher.delayed SET available_at = now() - interval '1 min' + seq * interval '1 us'")
	require.NoError(n.t, err)
}

func TestDelayedMessagesOfAQueueWhoseKeyIsMissingWaitAndHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{keys: master("m", 1)})
	n.encrypted(nil)
	const many = store.DueMessages + 200 // more than one look takes
	for i := 0; i < many; i += 1000 {
		items := make([]*queuev1.PushItem, min(1000, many-i))
		for j := range items {
			items[j] = inAnHour("p", fmt.Sprint("sealed ", i+j))
		}
		n.push("q", items...)
	}
	n.push("clear", inAnHour("p", "goes on"))
	n.allDue()
	n.stop()

	blind := newNode(t, url, nodeOptions{keys: master("other", 2)})
	withheld := blind.moveDue()
	require.Len(t, withheld, 1)
	require.ErrorIs(t, withheld[0].Err, store.ErrKeyMissing)
	require.Error(t, blind.KeysMissing(), "it is told")
	require.Equal(t, []string{"goes on"}, payloads(blind.pop(&queuev1.PopRequest{Queue: "clear", Wait: seconds(2)})))
	require.Equal(t, many, blind.waiting(), "nothing is lost")
	_, next, err := blind.control.NextDue(t.Context(), time.Time{}, []message.ShardID{withheld[0].Shard})
	require.NoError(t, err)
	require.True(t, next.IsZero())
	blind.stop()

	n = newNode(t, url, nodeOptions{keys: master("other", 2) + "," + master("m", 1)})
	require.Empty(t, n.moveDue())
	require.Zero(t, n.waiting())
	var got []string
	for len(got) < many {
		lease := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 1000, Wait: seconds(2)})
		require.NotEmpty(t, lease.GetDeliveries())
		got = append(got, payloads(lease)...)
		n.ackAll("q", lease.GetLease())
	}
	for i, payload := range got {
		require.Equal(t, fmt.Sprint("sealed ", i), payload, "in the order in which they were due")
	}
}

func TestADelayedMessageThatWasChangedMovedOrForgedIsNotDeliveredAndNotDropped(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{keys: master("m", 1)})
	n.encrypted(nil)
	n.push("q", inAnHour("p", "first"), inAnHour("p", "later"))
	n.push("clear", inAnHour("p", "goes on"))
	n.allDue()
	forged := message.AppendFrame(nil, &message.Message{Partition: "p", Payload: []byte("forged")})
	_, err := n.db.Exec(t.Context(), "CREATE TABLE dispatcher.kept AS SELECT * FROM dispatcher.delayed WHERE key_id <> 0")
	require.NoError(t, err)

	for name, spoil := range map[string]string{
		"moved":          `UPDATE dispatcher.delayed a SET frame = b.frame FROM dispatcher.kept b WHERE b.shard_id = a.shard_id AND a.key <> b.key AND a.key_id <> 0`,
		"changed":        `UPDATE dispatcher.delayed SET frame = set_byte(frame, 30, get_byte(frame, 30) # 1) WHERE key_id <> 0`,
		"cut":            `UPDATE dispatcher.delayed SET frame = substr(frame, 1, 20) WHERE key_id <> 0`,
		"in clear":       fmt.Sprintf(`UPDATE dispatcher.delayed SET key_id = 0, frame = '\x%x' WHERE key_id <> 0`, forged),
		"of no key":      `UPDATE dispatcher.delayed SET key_id = 999 WHERE key_id <> 0`,
		"of another row": `UPDATE dispatcher.delayed SET key = gen_random_uuid() WHERE key_id <> 0`,
	} {
		_, err := n.db.Exec(t.Context(), spoil)
		require.NoError(t, err, name)
		withheld := n.moveDue()
		require.Len(t, withheld, 1, name)
		require.Equal(t, "q", withheld[0].Queue, name)
		require.Equal(t, 2, n.waiting(), name)
		_, err = n.db.Exec(t.Context(), `DELETE FROM dispatcher.delayed`)
		require.NoError(t, err)
		_, err = n.db.Exec(t.Context(), `INSERT INTO dispatcher.delayed OVERRIDING SYSTEM VALUE SELECT * FROM dispatcher.kept`)
		require.NoError(t, err)
	}
	require.InDelta(t, 5, n.metric("delayed_withheld_total"), 0, "all but the one whose key is missing")
	require.Equal(t, []string{"goes on"}, payloads(n.pop(&queuev1.PopRequest{Queue: "clear", Wait: seconds(2)})))
	require.Empty(t, n.moveDue())
	require.Equal(t, []string{"first", "later"}, payloads(n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10, Wait: seconds(2)})))
}

func TestWhatComesDueIsCompressedAsItsQueueSays(t *testing.T) {
	t.Parallel()
	url := database(t)
	text := strings.Repeat("all the same ", 200)
	for config, want := range map[string]segment.Codec{`{}`: segment.CodecZstd, `{"compression":"none"}`: segment.CodecRaw} {
		n := newNode(t, url, nodeOptions{})
		n.set(url, config)
		n.push("q", inAnHour("p", text))
		n.comeDue()
		var codec segment.Codec
		var size int
		require.NoError(t, n.db.QueryRow(t.Context(), `SELECT codec, octet_length(body) FROM dispatcher.segments
			ORDER BY base_offset DESC LIMIT 1`).Scan(&codec, &size))
		require.Equal(t, want, codec, config)
		require.Equal(t, want == segment.CodecRaw, size > len(text), config)
		n.stop()
	}
}
