package server

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/trace"
)

func TestEventsArePagedByATokenOfTheirMessageAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	_, err := b.ConfigureQueue(b.as("a"), &queuev1.ConfigureQueueRequest{Queue: "q", Options: &queuev1.QueueOptions{Trace: proto.Bool(true)}})
	require.NoError(t, err)
	q, err := b.control.FindQueue(t.Context(), "a", "q")
	require.NoError(t, err)
	b.push(q, message.Message{Partition: "p", Payload: []byte("x")})
	b.push(q, message.Message{Partition: "p", Payload: []byte("y")})
	_, err = b.CreateGroup(b.as("a"), &queuev1.CreateGroupRequest{Queue: "q", Group: "g"})
	require.NoError(t, err)
	for _, to := range []string{"latest", "earliest"} {
		_, err = b.SeekGroup(b.as("a"), &queuev1.SeekGroupRequest{Queue: "q", Group: "g", To: to})
		require.NoError(t, err)
	}
	ask := func(offset message.Offset, token string) (*queuev1.LookupMessageResponse, error) {
		return b.LookupMessage(b.as("a"), &queuev1.LookupMessageRequest{
			Queue: "q", MessageId: message.ID{Shard: q.Shards[0], Offset: offset}.String(), Trace: true, PageSize: 2, PageToken: token,
		})
	}

	first, err := ask(0, "")
	require.NoError(t, err)
	require.Len(t, first.GetTraceEvents(), 2)
	require.Equal(t, queuev1.TraceEventKind_TRACE_EVENT_KIND_PUSHED, first.GetTraceEvents()[0].GetKind())
	require.True(t, proto.Equal(first.GetCreatedAt(), first.GetTraceEvents()[0].GetAt()))
	require.EqualValues(t, 2, first.GetTraceEvents()[1].GetToOffset())
	rest, err := ask(0, first.GetNextPageToken())
	require.NoError(t, err)
	require.Len(t, rest.GetTraceEvents(), 1)
	require.NotNil(t, rest.GetTraceEvents()[0].ToOffset)
	require.Zero(t, rest.GetTraceEvents()[0].GetToOffset())
	require.Empty(t, rest.GetNextPageToken())
	_, err = ask(1, first.GetNextPageToken())
	refused(t, err, codes.InvalidArgument, "TOKEN_MALFORMED")
	_, err = ask(0, "x")
	refused(t, err, codes.InvalidArgument, "TOKEN_MALFORMED")
}

func TestEveryKindOfEventHasAName(t *testing.T) {
	t.Parallel()
	seen := map[queuev1.TraceEventKind]bool{}
	for k := trace.Pushed; k <= trace.Deleted; k++ {
		seen[kindOf(k)] = true
	}
	require.Len(t, seen, len(queuev1.TraceEventKind_name)-1)
	require.NotContains(t, seen, queuev1.TraceEventKind_TRACE_EVENT_KIND_UNSPECIFIED)
}
