package conformance

import (
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Target is a running surface.
type Target struct {
	BaseURL string // http://host:port
	GRPC    string // host:port
	Key     string // an administrator's key of tenant default
}

// REST returns the target's REST surface for a key; an empty key sends none.
func (t Target) REST(key string) Client { return t.rest(key) }

func (t Target) rest(key string) overREST {
	return overREST{base: t.BaseURL, key: key, http: &http.Client{Timeout: 2 * time.Minute}}
}

// OverGRPC returns the target's gRPC surface for a key; an empty key sends none.
func (t Target) OverGRPC(tb testing.TB, key string) Client {
	tb.Helper()
	conn, err := dialGRPC(t.GRPC, key)
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
	return overGRPC{queue: queuev1.NewQueueServiceClient(conn), admin: adminv1.NewAdminServiceClient(conn)}
}

// kit is what a case gets: a client, names that nobody else uses, and the surface's name.
type kit struct {
	Client

	target Target
	with   func(key string) Client // the same surface with another key
	name   func(prefix string) string

	surface string // rest or grpc
}

type testCase struct {
	name string
	run  func(t *testing.T, k kit)
}

// Run runs every case that any dispatcher must pass, over both surfaces.
func Run(t *testing.T, target Target) {
	t.Helper()
	run(t, target, cases())
}

func run(t *testing.T, target Target, cases []testCase) {
	t.Helper()
	var names atomic.Int64
	unique := strconv.FormatInt(time.Now().UnixNano()%1e9, 36)
	fresh := func(prefix string) string { return prefix + "-" + unique + "-" + strconv.FormatInt(names.Add(1), 10) }
	surfaces := map[string]func(t *testing.T, key string) Client{
		"rest": func(_ *testing.T, key string) Client { return target.REST(key) },
		"grpc": func(t *testing.T, key string) Client { return target.OverGRPC(t, key) },
	}
	for surface, open := range surfaces {
		for _, c := range cases {
			t.Run(surface+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				c.run(t, kit{
					Client: open(t, target.Key), target: target, name: fresh, surface: surface,
					with: func(key string) Client { return open(t, key) },
				})
			})
		}
	}
}

func cases() []testCase {
	return []testCase{
		{"pushed messages are popped in order and acked", orderedRoundTrip},
		{"payload bytes come back unchanged", payloadFidelity},
		{"binary payloads and headers come back", binaryPayload},
		{"one bad item never harms its neighbours", badItemAlone},
		{"a push without a good item stores nothing", nothingGood},
		{"an idempotency key yields one message", idempotencyKey},
		{"a request key replays the first answer", requestKey},
		{"an empty queue answers empty", emptyPop},
		{"a waiting pop gets what is pushed meanwhile", waitingPop},
		{"a nacked message comes again", nackReturns},
		{"a rejected message is a dead letter and can be redriven", deadLetters},
		{"a dead letter that is purged is gone, and others are not", purge},
		{"a stale lease is refused", staleLease},
		{"a repeated ack is already settled", repeatedAck},
		{"the rest is what is not named", restIsNotNamed},
		{"the rest is not acked beside a refusal", restBesideRefusal},
		{"a failed message stops its partition, in whatever order it is said", failureStopsPartition},
		{"a nack or reject of what is settled is refused", lateNack},
		{"a lease of another group than is said is refused", leaseOfAnotherGroup},
		{"release gives back at once and uncharged", releaseReturns},
		{"renew tells a later deadline", renewLater},
		{"pop settles the lease before", settleAndPop},
		{"shared mode settles out of order", sharedMode},
		{"a transaction moves a message to another queue, or does nothing", transact},
		{"a group with other options is refused", groupMismatch},
		{"configure merges, resets and counts", configureMerges},
		{"queues are listed, shown and deleted", listShowDelete},
		{"partitions are listed", listPartitions},
		{"groups are created and deleted", groups},
		{"a group is moved back and forth", seekGroup},
		{"a message is found by its client id", lookup},
		{"a deleted message is gone for everybody", deleteMessage},
		{"a cancelled message never comes", cancelMessage},
		{"what is in the log is shown, and nothing changes", peek},
		{"a message is traced through its group", trace},
		{"a traced queue tells what happened to a message, in order", traceEvents},
		{"a delayed message is accepted now and comes when it is due", delayed},
		{"a duplicate of a delayed message is told its pending id", delayedDuplicate},
		{"a time of delivery in the past is now", deliverInThePast},
		{"absurd times of delivery are refused, each alone", absurdTimes},
		{"a queue with a delay hands out what is that old, and shows the rest", queueDelay},
		{"lanes are served the highest first", lanes},
		{"a subscription has what was pushed, from where it says, and resumes", subscribeResumes},
		{"a subscription has only what its filter wants", subscribeFilters},
		{"a subscription that cannot begin is refused", subscribeRefusals},
		{"names with slashes, percents, colons and any script work", oddNames},
		{"keys are scoped by role", roles},
		{"no tenant sees another's anything", tenants},
		{"a revoked key ends", revocation},
	}
}

func item(partition, payload string) *queuev1.PushItem {
	return &queuev1.PushItem{Partition: partition, Payload: []byte(payload), ContentType: "application/json"}
}

func push(t *testing.T, k kit, queue string, items ...*queuev1.PushItem) *queuev1.PushResponse {
	t.Helper()
	resp, err := k.Push(t.Context(), &queuev1.PushRequest{Queue: queue, Items: items})
	require.NoError(t, err)
	require.Len(t, resp.GetResults(), len(items))
	for _, r := range resp.GetResults() {
		require.Equal(t, queuev1.PushStatus_PUSH_STATUS_QUEUED, r.GetStatus(), "%v", r)
		require.NotEmpty(t, r.GetMessageId())
	}
	return resp
}

func pop(t *testing.T, k kit, queue string, batch int32) *queuev1.PopResponse {
	t.Helper()
	resp, err := k.Pop(t.Context(), &queuev1.PopRequest{Queue: queue, Batch: batch, Wait: durationpb.New(5 * time.Second)})
	require.NoError(t, err)
	return resp
}

func ackAll(t *testing.T, k kit, queue string, popped *queuev1.PopResponse) {
	t.Helper()
	resp, err := k.Ack(t.Context(), &queuev1.AckRequest{Queue: queue, Lease: popped.GetLease(), AckRest: true})
	require.NoError(t, err)
	require.EqualValues(t, len(popped.GetDeliveries()), resp.GetRestAcked())
}

func payloadsOf(r *queuev1.PopResponse) []string {
	var out []string
	for _, d := range r.GetDeliveries() {
		out = append(out, string(d.GetPayload()))
	}
	return out
}

func deep(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }
