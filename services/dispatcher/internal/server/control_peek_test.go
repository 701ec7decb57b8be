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

// peekRules breaks the rules of where to look.
func (r *rules) peekRules() {
	for _, c := range []struct {
		reason, field string
		req           *queuev1.PeekMessagesRequest
	}{
		{"NAME_TOO_LONG", "partition", &queuev1.PeekMessagesRequest{Partition: tooLong()}},
		{"OUT_OF_RANGE", "shard", &queuev1.PeekMessagesRequest{Shard: proto.Int32(-1)}},
		{"OUT_OF_RANGE", "shard", &queuev1.PeekMessagesRequest{Shard: proto.Int32(0), Partition: "p"}},
		{"OUT_OF_RANGE", "limit", &queuev1.PeekMessagesRequest{Limit: -1}},
		{"OUT_OF_RANGE", "limit", &queuev1.PeekMessagesRequest{Limit: 1001}},
		{"OUT_OF_RANGE", "max_bytes", &queuev1.PeekMessagesRequest{MaxBytes: -1}},
		{"OUT_OF_RANGE", "max_bytes", &queuev1.PeekMessagesRequest{MaxBytes: 32<<20 + 1}},
		{"ENUM_UNKNOWN", "from", &queuev1.PeekMessagesRequest{From: "yesterday"}},
		{"ENUM_UNKNOWN", "from", &queuev1.PeekMessagesRequest{From: "-1"}},
		{"ENUM_UNKNOWN", "from", &queuev1.PeekMessagesRequest{From: "9223372036854775808"}},
	} {
		c.req.Queue = "q"
		r.add(c.reason, c.field, func() error {
			_, err := r.PeekMessages(r.ctx, c.req)
			return err
		})
	}
}

// traceRules breaks the rules of whose trace is asked for.
func (r *rules) traceRules() {
	r.add("NAME_TOO_LONG", "group", func() error {
		_, err := r.LookupMessage(r.ctx, &queuev1.LookupMessageRequest{Queue: "q", ClientId: "c", Trace: true, Group: tooLong()})
		return err
	})
	r.add("OUT_OF_RANGE", "group", func() error {
		_, err := r.LookupMessage(r.ctx, &queuev1.LookupMessageRequest{Queue: "q", ClientId: "c", Group: "g"})
		return err
	})
	for field, req := range map[string]*queuev1.LookupMessageRequest{
		"page_size":   {PageSize: 5},
		"page_token":  {PageToken: "x"},
		"page_size ":  {Trace: true, PageSize: 1001},
		"page_size  ": {Trace: true, PageSize: -1},
	} {
		req.Queue, req.ClientId = "q", "c"
		r.add("OUT_OF_RANGE", strings.TrimSpace(field), func() error {
			_, err := r.LookupMessage(r.ctx, req)
			return err
		})
	}
}

func TestAPeekShowsTenMessagesUnlessItSaysOtherwise(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	q := b.configured("a", "q")
	for range 12 {
		b.push(q, message.Message{Partition: "p", ClientID: "c", ContentType: "text/plain", Payload: []byte("x"), Headers: []message.Header{{Name: "h", Value: "v"}}})
	}

	got, err := b.PeekMessages(b.as("a"), &queuev1.PeekMessagesRequest{Queue: "q"})
	require.NoError(t, err)
	require.Len(t, got.GetMessages(), 10)
	require.Equal(t, []int64{0, 10, 0, 12}, []int64{got.GetFromOffset(), got.GetNextOffset(), got.GetTail(), got.GetHead()})
	last := got.GetMessages()[9]
	require.NotNil(t, last.GetCreatedAt())
	last.CreatedAt = nil
	require.True(t, proto.Equal(&queuev1.PeekedMessage{
		MessageId: message.ID{Shard: q.Shards[0], Offset: 9}.String(), Partition: "p", Offset: 9, Payload: []byte("x"), ContentType: "text/plain",
		Headers: map[string]string{"h": "v"}, ClientId: "c",
	}, last), "%v", last)
	_, err = b.PeekMessages(b.as("a"), &queuev1.PeekMessagesRequest{Queue: "q", Shard: proto.Int32(1)})
	refused(t, err, codes.InvalidArgument, "OUT_OF_RANGE")
}
