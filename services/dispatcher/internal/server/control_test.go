package server

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
)

func TestConfigureShowsEveryOptionAndCreates(t *testing.T) {
	t.Parallel()
	b := newBench(t)

	resp, err := b.ConfigureQueue(b.as("a"), &queuev1.ConfigureQueueRequest{
		Queue: "q", Options: &queuev1.QueueOptions{MaxAttempts: proto.Int32(2), Backoff: durationpb.New(0), Shards: proto.Int32(3), Compression: queuev1.Compression_COMPRESSION_NONE.Enum(), Lanes: proto.Int32(2), Delay: durationpb.New(7 * time.Second)},
	})
	require.NoError(t, err)
	require.True(t, resp.GetCreated())
	require.True(t, proto.Equal(&queuev1.QueueOptions{
		Lease: durationpb.New(30 * time.Second), MaxAttempts: proto.Int32(2), Backoff: durationpb.New(0), BackoffMax: durationpb.New(5 * time.Minute),
		MaxMessageBytes: proto.Int32(1 << 20), IdempotencyWindow: durationpb.New(time.Hour), MaxGroups: proto.Int32(100), Shards: proto.Int32(3),
		Retention: durationpb.New(0), RetentionBytes: proto.Int64(0), RetentionSettled: proto.Bool(false),
		ExpireAfter: durationpb.New(7 * 24 * time.Hour), MaxQueueBytes: proto.Int64(0), MaxQueueMessages: proto.Int64(0),
		Compression: queuev1.Compression_COMPRESSION_NONE.Enum(), Encryption: proto.Bool(false), Lanes: proto.Int32(2), Trace: proto.Bool(false),
		Delay: durationpb.New(7 * time.Second),
	}, resp.GetQueue().GetOptions()), resp)
	require.Equal(t, []string{"changed a/q"}, b.notes.taken())

	resp, err = b.ConfigureQueue(b.as("a"), &queuev1.ConfigureQueueRequest{
		Queue: "q", Options: &queuev1.QueueOptions{Lease: durationpb.New(time.Minute)}, Reset_: []string{"max_attempts", "backoff"},
	})
	require.NoError(t, err)
	require.False(t, resp.GetCreated())
	require.Equal(t, int32(5), resp.GetQueue().GetOptions().GetMaxAttempts())
	require.Equal(t, time.Second, resp.GetQueue().GetOptions().GetBackoff().AsDuration())
	require.Equal(t, time.Minute, resp.GetQueue().GetOptions().GetLease().AsDuration())
	require.Equal(t, int64(2), resp.GetQueue().GetConfigVersion())
}

func TestQueueIsShownWithWhatItHolds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	q := b.configured("a", "q")
	for range 3 {
		b.push(q, message.Message{Partition: "p", Payload: []byte("x")})
	}
	b.deadLetter(q, "dead")
	b.rates.Add(q.ID, 40)
	b.clk.Advance(time.Second)

	resp, err := b.GetQueue(b.as("a"), &queuev1.GetQueueRequest{Queue: "q"})
	require.NoError(t, err)
	shown := resp.GetQueue()
	require.Equal(t, int64(3), shown.GetMessages())
	require.Equal(t, int64(3), shown.GetDepth(), "all messages where there is no group")
	require.Positive(t, shown.GetStoredBytes())
	require.Equal(t, int64(1), shown.GetDeadLetters())
	require.InDelta(t, 40.0, shown.GetPushRate(), 0.01)
	require.Len(t, resp.GetShards(), 1)
	require.Equal(t, int64(3), resp.GetShards()[0].GetHead())
	require.NotNil(t, resp.GetShards()[0].GetLastPushAt())
	require.Empty(t, resp.GetGroups())

	_, err = b.CreateGroup(b.as("a"), &queuev1.CreateGroupRequest{Queue: "q", Group: "g", Options: &queuev1.GroupOptions{Start: "latest", Mode: queuev1.GroupMode_GROUP_MODE_SHARED}})
	require.NoError(t, err)
	b.push(q, message.Message{Partition: "p", Payload: []byte("x")})
	resp, err = b.GetQueue(b.as("a"), &queuev1.GetQueueRequest{Queue: "q"})
	require.NoError(t, err)
	require.Equal(t, int64(1), resp.GetQueue().GetDepth(), "the group began at latest")
	g := resp.GetGroups()[0]
	require.Equal(t, "latest", g.GetStart())
	require.Equal(t, queuev1.GroupMode_GROUP_MODE_SHARED, g.GetMode())
	require.Equal(t, queuev1.OnFailure_ON_FAILURE_BLOCK, g.GetOnFailure())
	require.Equal(t, int64(1), g.GetDepth())
	require.Equal(t, int64(1), g.GetLagMessages())
	require.Equal(t, int64(1), g.GetDeadLetters())
}

func TestEveryListingPagesThroughAllOfIt(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	q := b.configured("a", "q")
	want := map[string]int{}
	for i := range 7 {
		b.configured("a", fmt.Sprint("z", i))
		b.deadLetter(q, "x")
		b.exec("INSERT INTO dispatcher.partitions VALUES ($1, $2, 1, 0, 0, now())", q.ID, fmt.Sprint("p", i))
	}
	want["queues"], want["dead letters"], want["partitions"] = 8, 7, 7

	got := map[string]map[string]bool{"queues": {}, "dead letters": {}, "partitions": {}}
	token := ""
	for range 10 {
		r, err := b.ListQueues(b.as("a"), &queuev1.ListQueuesRequest{PageSize: 3, PageToken: token})
		require.NoError(t, err)
		for _, q := range r.GetQueues() {
			got["queues"][q.GetName()] = true
		}
		if token = r.GetNextPageToken(); token == "" {
			break
		}
	}
	for range 10 {
		r, err := b.ListDeadLetters(b.as("a"), &queuev1.ListDeadLettersRequest{Queue: "q", PageSize: 3, PageToken: token})
		require.NoError(t, err)
		for _, d := range r.GetDeadLetters() {
			require.Empty(t, d.GetPayload())
			require.Equal(t, int32(1), d.GetPayloadBytes())
			got["dead letters"][d.GetId()] = true
		}
		if token = r.GetNextPageToken(); token == "" {
			break
		}
	}
	for range 10 {
		r, err := b.ListPartitions(b.as("a"), &queuev1.ListPartitionsRequest{Queue: "q", PageSize: 3, PageToken: token})
		require.NoError(t, err)
		for _, p := range r.GetPartitions() {
			got["partitions"][p.GetName()] = true
		}
		if token = r.GetNextPageToken(); token == "" {
			break
		}
	}
	for what, n := range want {
		require.Len(t, got[what], n, what)
	}
}

func TestTokenOfOneListingIsRefusedByAnother(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, name := range []string{"q", "r"} {
		q := b.configured("a", name)
		b.deadLetter(q, "x")
		b.deadLetter(q, "x")
	}
	b.configured("b", "q")
	page, err := b.ListDeadLetters(b.as("a"), &queuev1.ListDeadLettersRequest{Queue: "q", PageSize: 1})
	require.NoError(t, err)
	token := page.GetNextPageToken()
	require.NotEmpty(t, token)

	for name, do := range map[string]func() error{
		"other queue": func() error {
			_, err := b.ListDeadLetters(b.as("a"), &queuev1.ListDeadLettersRequest{Queue: "r", PageToken: token})
			return err
		},
		"other filter": func() error {
			_, err := b.ListDeadLetters(b.as("a"), &queuev1.ListDeadLettersRequest{Queue: "q", Group: "g", PageToken: token})
			return err
		},
		"other tenant": func() error {
			_, err := b.ListDeadLetters(b.as("b"), &queuev1.ListDeadLettersRequest{Queue: "q", PageToken: token})
			return err
		},
		"other call": func() error {
			_, err := b.ListQueues(b.as("a"), &queuev1.ListQueuesRequest{PageToken: token})
			return err
		},
		"garbage": func() error {
			_, err := b.ListQueues(b.as("a"), &queuev1.ListQueuesRequest{PageToken: "garbage!"})
			return err
		},
	} {
		t.Log(name)
		refused(t, do(), codes.InvalidArgument, "TOKEN_MALFORMED", "page_token")
	}
}

func TestRedriveTellsWhatBecameOfEach(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	q := b.configured("a", "q")
	one, two := b.deadLetter(q, "1"), b.deadLetter(q, "2")
	nobody := "00000000-0000-7000-8000-000000000000"
	b.notes.taken()

	resp, err := b.RedriveDeadLetters(b.as("a"), &queuev1.RedriveDeadLettersRequest{Queue: "q", Ids: []string{one, nobody}})
	require.NoError(t, err)
	require.True(t, proto.Equal(&queuev1.RedriveDeadLettersResponse{Redriven: 1, NotFound: []string{nobody}}, resp), resp)
	require.Equal(t, []string{"appended a/q"}, b.notes.taken())
	resp, err = b.RedriveDeadLetters(b.as("a"), &queuev1.RedriveDeadLettersRequest{Queue: "q", Ids: []string{one, two}})
	require.NoError(t, err)
	require.True(t, proto.Equal(&queuev1.RedriveDeadLettersResponse{Redriven: 1, AlreadyRedriven: 1}, resp), resp)
	b.notes.taken()
	resp, err = b.RedriveDeadLetters(b.as("a"), &queuev1.RedriveDeadLettersRequest{Queue: "q", Group: "g"})
	require.NoError(t, err)
	require.True(t, proto.Equal(&queuev1.RedriveDeadLettersResponse{}, resp), resp)
	require.Empty(t, b.notes.taken(), "nothing was appended")

	d, err := b.GetDeadLetter(b.as("a"), &queuev1.GetDeadLetterRequest{Queue: "q", Id: one})
	require.NoError(t, err)
	require.Equal(t, "1", string(d.GetDeadLetter().GetPayload()))
	require.Equal(t, "rejected", d.GetDeadLetter().GetReason())
	require.Equal(t, int32(4), d.GetDeadLetter().GetAttempts())
	require.NotNil(t, d.GetDeadLetter().GetRedrivenAt())
}

func TestPurgeTellsWhatBecameOfEach(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	q := b.configured("a", "q")
	one, two, three := b.deadLetter(q, "1"), b.deadLetter(q, "2"), b.deadLetter(q, "3")
	nobody := "00000000-0000-7000-8000-000000000000"
	_, err := b.RedriveDeadLetters(b.as("a"), &queuev1.RedriveDeadLettersRequest{Queue: "q", Ids: []string{two}})
	require.NoError(t, err)
	ask := func(req *queuev1.PurgeDeadLettersRequest) *queuev1.PurgeDeadLettersResponse {
		t.Helper()
		req.Queue = "q"
		resp, err := b.PurgeDeadLetters(b.as("a"), req)
		require.NoError(t, err)
		return resp
	}

	want := &queuev1.PurgeDeadLettersResponse{Purged: 1, AlreadyRedriven: 1, NotFound: []string{nobody}}
	require.True(t, proto.Equal(want, ask(&queuev1.PurgeDeadLettersRequest{Ids: []string{one, two, nobody}})))
	past := timestamppb.New(time.Date(2001, 1, 1, 0, 0, 0, 0, time.UTC))
	require.Zero(t, ask(&queuev1.PurgeDeadLettersRequest{All: true, FailedBefore: past}).GetPurged())
	require.Zero(t, ask(&queuev1.PurgeDeadLettersRequest{Group: "other"}).GetPurged())
	want = &queuev1.PurgeDeadLettersResponse{Purged: 1, More: true}
	require.True(t, proto.Equal(want, ask(&queuev1.PurgeDeadLettersRequest{All: true, Limit: 1, IncludeRedriven: true})))
	_, err = b.GetDeadLetter(b.as("a"), &queuev1.GetDeadLetterRequest{Queue: "q", Id: three})
	require.NoError(t, err, "the oldest went first")
	require.EqualValues(t, 1, ask(&queuev1.PurgeDeadLettersRequest{Group: "g"}).GetPurged())
	_, err = b.GetDeadLetter(b.as("a"), &queuev1.GetDeadLetterRequest{Queue: "q", Id: three})
	refused(t, err, codes.NotFound, "DEAD_LETTER_NOT_FOUND")
}

func TestMessageIsLookedUpByItsClientID(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	q := b.configured("a", "q")
	b.push(q, message.Message{Partition: "default", ClientID: "c", ContentType: "text/plain", Payload: []byte("x"), Headers: []message.Header{{Name: "h", Value: "v"}}})

	resp, err := b.LookupMessage(b.as("a"), &queuev1.LookupMessageRequest{Queue: "q", ClientId: "c"})
	require.NoError(t, err)
	require.Equal(t, message.ID{Shard: q.Shards[0]}.String(), resp.GetMessageId())
	require.Equal(t, map[string]string{"h": "v"}, resp.GetHeaders())
	require.Equal(t, "x", string(resp.GetPayload()))
	_, err = b.LookupMessage(b.as("a"), &queuev1.LookupMessageRequest{Queue: "q", ClientId: "d"})
	refused(t, err, codes.NotFound, "MESSAGE_NOT_FOUND")
}

func TestEachMutatingControlCallLeavesOneEntryAndReadingLeavesNone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := b.as("a")
	q := b.configured("a", "q")
	id := b.deadLetter(q, "x")
	b.audited()
	ask := func(_ any, err error) { t.Helper(); require.NoError(t, err) }

	ask(b.ConfigureQueue(ctx, &queuev1.ConfigureQueueRequest{Queue: "q", Options: &queuev1.QueueOptions{MaxAttempts: proto.Int32(2)}}))
	require.Equal(t, []string{"a ann queue.configure queue/q"}, b.audited())
	ask(b.CreateGroup(ctx, &queuev1.CreateGroupRequest{Queue: "q", Group: "g"}))
	require.Equal(t, []string{"a ann group.create queue/q/group/g"}, b.audited())
	ask(b.RedriveDeadLetters(ctx, &queuev1.RedriveDeadLettersRequest{Queue: "q", Ids: []string{id}}))
	require.Equal(t, []string{"a ann dead_letter.redrive queue/q"}, b.audited())
	ask(b.PurgeDeadLetters(ctx, &queuev1.PurgeDeadLettersRequest{Queue: "q", All: true, IncludeRedriven: true}))
	require.Equal(t, []string{"a ann dead_letter.purge queue/q"}, b.audited())
	ask(b.DeleteGroup(ctx, &queuev1.DeleteGroupRequest{Queue: "q", Group: "g"}))
	require.Equal(t, []string{"a ann group.delete queue/q/group/g"}, b.audited())
	ask(b.DeleteQueue(ctx, &queuev1.DeleteQueueRequest{Queue: "q"}))
	require.Equal(t, []string{"a ann queue.delete queue/q"}, b.audited())

	b.configured("a", "q")
	b.audited()
	ask(b.ListQueues(ctx, &queuev1.ListQueuesRequest{}))
	ask(b.GetQueue(ctx, &queuev1.GetQueueRequest{Queue: "q"}))
	ask(b.ListPartitions(ctx, &queuev1.ListPartitionsRequest{Queue: "q"}))
	ask(b.ListDeadLetters(ctx, &queuev1.ListDeadLettersRequest{Queue: "q"}))
	ask(b.GetDeadLetter(ctx, &queuev1.GetDeadLetterRequest{Queue: "q", Id: b.deadLetter(q, "y")}))
	require.Empty(t, b.audited())
}
