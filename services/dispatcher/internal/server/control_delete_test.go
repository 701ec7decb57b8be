package server

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
)

// deleteRules breaks the rules of which message is meant.
func (r *rules) deleteRules() {
	for _, c := range []struct {
		reason, field string
		req           *queuev1.DeleteMessageRequest
	}{
		{"NAME_EMPTY", "client_id", &queuev1.DeleteMessageRequest{}},
		{"NAME_EMPTY", "client_id", &queuev1.DeleteMessageRequest{Partition: "p"}},
		{"NAME_TOO_LONG", "client_id", &queuev1.DeleteMessageRequest{ClientId: tooLong()}},
		{"NAME_TOO_LONG", "partition", &queuev1.DeleteMessageRequest{Partition: tooLong(), ClientId: "c"}},
		{bad, "message_id", &queuev1.DeleteMessageRequest{MessageId: "1", ClientId: "c"}},
		{bad, "message_id", &queuev1.DeleteMessageRequest{MessageId: "1", Partition: "p"}},
		{"ID_MALFORMED", "message_id", &queuev1.DeleteMessageRequest{MessageId: "0"}},
		{"ID_MALFORMED", "message_id", &queuev1.DeleteMessageRequest{MessageId: strings.Repeat("z", 100)}},
		{"ID_MALFORMED", "message_id", &queuev1.DeleteMessageRequest{MessageId: "p_0"}},
	} {
		c.req.Queue = "q"
		r.add(c.reason, c.field, func() error { _, err := r.DeleteMessage(r.ctx, c.req); return err })
	}
}

func TestADeleteUnderAKeyIsDoneOnceAndToldToTheEngine(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	q := b.configured("a", "q")
	b.push(q, message.Message{Partition: "default", ClientID: "c", Payload: []byte("1")})
	b.notes.taken()
	keyed, _ := b.keyed("a", "once")
	req := &queuev1.DeleteMessageRequest{Queue: "q", ClientId: "c"}

	first, err := b.DeleteMessage(keyed, req)
	require.NoError(t, err)
	noted := b.notes.taken()
	b.push(q, message.Message{Partition: "default", ClientID: "c", Payload: []byte("2")})
	again, err := b.DeleteMessage(keyed, req)

	require.NoError(t, err)
	require.True(t, proto.Equal(first, again))
	require.Equal(t, message.ID{Shard: q.Shards[0]}.String(), first.GetMessageId())
	require.NotEmpty(t, noted)
	require.Empty(t, b.notes.taken())
	found, err := b.LookupMessage(b.as("a"), &queuev1.LookupMessageRequest{Queue: "q", ClientId: "c"})
	require.NoError(t, err, "what has the name now is another")
	require.Equal(t, "2", string(found.GetPayload()))
	_, err = b.LookupMessage(b.as("a"), &queuev1.LookupMessageRequest{Queue: "q", MessageId: first.GetMessageId()})
	refused(t, err, codes.NotFound, "MESSAGE_NOT_FOUND")
}
