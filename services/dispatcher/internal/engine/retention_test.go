package engine_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/pkg/clock"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/loop"
	"postrider.dev/services/dispatcher/internal/store"
)

// trimmer is the part of a dispatcher that applies retention, to be run round by round.
func (n *node) trimmer() *loop.Trimmer {
	return loop.NewTrimmer(n.control, n.Engine, clock.Real{}, logger(n.t), prometheus.NewRegistry(), time.Second)
}

// age makes all that is in the log an hour older.
func age(t *testing.T, url string) {
	t.Helper()
	exec(t, session(t, url), "UPDATE dispatcher.segments SET created_at = created_at - interval '1 hour'")
}

func count(t *testing.T, url, sql string) (n int) {
	t.Helper()
	require.NoError(t, session(t, url).QueryRow(t.Context(), sql).Scan(&n))
	return n
}

func TestALaggingGroupIsToldOnceWhatRetentionTook(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"retention": "30m0s"}`)
	for i := range 3 {
		n.push("q", item("a", fmt.Sprint("old ", i)))
	}
	n.ackAll("q", n.pop(&queuev1.PopRequest{Queue: "q"}).GetLease())
	age(t, url)
	n.push("q", item("a", "new"), item("a", "newer"))

	require.NoError(t, n.trimmer().Round(t.Context()))
	first := n.pop(&queuev1.PopRequest{Queue: "q"})
	n.ackAll("q", first.GetLease())
	second := n.pop(&queuev1.PopRequest{Queue: "q"})

	require.Equal(t, []string{"new"}, payloads(first))
	require.Len(t, first.GetTrimmed(), 1)
	require.Equal(t, int64(2), first.GetTrimmed()[0].GetMessages(), "one was settled before")
	require.Equal(t, int64(3), first.GetTrimmed()[0].GetFirstAvailable())
	require.Equal(t, []string{"newer"}, payloads(second))
	require.Empty(t, second.GetTrimmed())
	require.InDelta(t, 2, n.metric("messages_dropped_total"), 0)
	require.Equal(t, 1, count(t, url, "SELECT count(*) FROM dispatcher.segments"))
	require.Equal(t, 3, count(t, url, "SELECT tail FROM dispatcher.shards"))
	require.Zero(t, count(t, url, `SELECT end_bytes - tail_bytes - (SELECT sum(octet_length(body)) FROM dispatcher.segments) FROM dispatcher.shards`))
}

func TestTheNewestSegmentStaysWhateverItsAge(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"retention": "1s", "retention_bytes": 1}`)
	n.push("q", item("a", "first"))
	n.push("q", item("a", "last"))
	age(t, url)

	require.NoError(t, n.trimmer().Round(t.Context()))

	require.Equal(t, []string{"last"}, payloads(n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})))
}

func TestRetentionByBytesKeepsTheNewestThatFit(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	for i := range 10 {
		n.push("q", item("a", fmt.Sprint("message ", i)))
	}
	each := count(t, url, "SELECT octet_length(body) FROM dispatcher.segments ORDER BY base_offset LIMIT 1")
	n.set(url, fmt.Sprintf(`{"retention_bytes": %d}`, 3*each+1))

	require.NoError(t, n.trimmer().Round(t.Context()))

	require.Equal(t, []string{"message 7", "message 8", "message 9"}, payloads(n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})))
}

func TestATrimmedMessageIsAckedByItsLeaseAndByItsIDAndOneThatWaitsIsADeadLetter(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	a.set(url, `{"retention": "30m0s"}`)
	ids := a.push("q", item("leased", "1"), item("waits", "2"), item("ready", "3"))
	leased := a.pop(&queuev1.PopRequest{Queue: "q", Partition: "leased"})
	waits := a.pop(&queuev1.PopRequest{Queue: "q", Partition: "waits"})
	_, err := a.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: waits.GetLease(), Settlements: []*queuev1.Settlement{{
		MessageId: ids[1].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_NACK, Delay: durationpb.New(time.Hour), Reason: "later",
	}}})
	require.NoError(t, err)
	age(t, url)
	a.push("q", item("x", "new"))

	require.NoError(t, b.trimmer().Round(t.Context())) // b has no body in memory
	ack, err := a.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: leased.GetLease(), AckRest: true})
	require.NoError(t, err)
	byID, err := a.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Settlements: []*queuev1.Settlement{
		{MessageId: ids[2].GetMessageId()}, {MessageId: ids[2].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_REJECT},
	}})
	require.NoError(t, err)
	letters, err := a.control.ListDeadLetters(t.Context(), ten, "q", store.DeadLetterFilter{Limit: 10})
	require.NoError(t, err)
	resp := a.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})

	require.Equal(t, int32(1), ack.GetRestAcked())
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_ALREADY_SETTLED, byID.GetResults()[0].GetStatus())
	require.Equal(t, "ALREADY_SETTLED", byID.GetResults()[1].GetError().GetCode())
	require.Len(t, letters, 1)
	require.True(t, letters[0].Trimmed)
	require.Equal(t, "trimmed", letters[0].Reason)
	require.Equal(t, "later", letters[0].LastError)
	require.Equal(t, []string{"new"}, payloads(resp))
	require.Equal(t, int64(2), resp.GetTrimmed()[0].GetMessages())
}

func TestWhatATrimmerThatDiedLeftUndoneTheNextRoundDoes(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"retention": "30m0s"}`)
	n.push("q", item("a", "old"))
	n.pop(&queuev1.PopRequest{Queue: "q", Group: "other", Partition: "none"})
	age(t, url)
	n.push("q", item("a", "new"))
	exec(t, session(t, url), `WITH s AS (UPDATE dispatcher.shards SET tail = 1, tail_bytes = 0)
		DELETE FROM dispatcher.segments WHERE base_offset = 0`) // and then it died: no group was told

	served := n.pop(&queuev1.PopRequest{Queue: "q", Group: "before the round"})
	require.NoError(t, n.trimmer().Round(t.Context()))
	resp := n.pop(&queuev1.PopRequest{Queue: "q", Group: "other"})

	require.Equal(t, []string{"new"}, payloads(served))
	require.Equal(t, []string{"new"}, payloads(resp))
	require.Equal(t, int64(1), resp.GetTrimmed()[0].GetMessages())
}

func TestAPopOfWhatWasTrimmedMeanwhileGetsWhatIsThere(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	a.push("q", item("a", "old"))
	b.push("q", item("a", "older in memory"), item("a", "new"))
	a.set(url, `{"retention": "30m0s"}`)
	warm := a.pop(&queuev1.PopRequest{Queue: "q", Batch: 3}) // the view knows all three
	_, err := a.Release(t.Context(), ten, &queuev1.ReleaseRequest{Queue: "q", Lease: warm.GetLease()})
	require.NoError(t, err)
	a.stop()
	c := newNode(t, url, nodeOptions{})
	c.push("q", item("b", "newest"))
	exec(t, session(t, url), `WITH s AS (UPDATE dispatcher.shards SET tail = 1) DELETE FROM dispatcher.segments WHERE base_offset = 0`)

	resp := c.pop(&queuev1.PopRequest{Queue: "q"})

	require.Equal(t, []string{"older in memory"}, payloads(resp))
}

func TestWhatIsSettledByAllGoesAndAnExpiredGroupIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"retention_settled": true, "expire_after": "24h0m0s"}`)
	for i := range 3 {
		n.push("q", item("a", strconv.Itoa(i)))
	}
	trim := n.trimmer()
	require.NoError(t, trim.Round(t.Context()))
	require.Zero(t, count(t, url, "SELECT tail FROM dispatcher.shards"), "no group: all is kept")
	n.ackAll("q", n.pop(&queuev1.PopRequest{Queue: "q", Group: "fast", Batch: 3}).GetLease())
	n.ackAll("q", n.pop(&queuev1.PopRequest{Queue: "q", Group: "slow"}).GetLease())

	require.NoError(t, trim.Round(t.Context()))
	require.Equal(t, 1, count(t, url, "SELECT tail FROM dispatcher.shards"), "the slow group needs the second")
	exec(t, session(t, url), "UPDATE dispatcher.segments SET created_at = created_at - interval '25 hours'")
	require.NoError(t, trim.Round(t.Context()))
	require.Equal(t, 1, count(t, url, "SELECT tail FROM dispatcher.shards"), "it was active within the day")
	exec(t, session(t, url), "UPDATE dispatcher.group_shards SET active_at = active_at - interval '25 hours'")
	require.NoError(t, trim.Round(t.Context()))

	require.Equal(t, 2, count(t, url, "SELECT tail FROM dispatcher.shards"), "the newest segment stays")
	resp := n.pop(&queuev1.PopRequest{Queue: "q", Group: "slow"})
	require.Equal(t, []string{"2"}, payloads(resp))
	require.Equal(t, int64(1), resp.GetTrimmed()[0].GetMessages())
}

func TestTheCatalogueForgetsPartitionsOfWhichNothingIsLeft(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"retention": "30m0s"}`)
	n.push("q", item("gone", "1"), item("stays", "2"))
	age(t, url)
	n.push("q", item("stays", "3"))
	catalogue := loop.NewCataloguer(n.control, n.TakeSeen, clock.Real{}, logger(t), time.Second)
	require.NoError(t, catalogue.Round(t.Context()))
	require.Equal(t, 2, count(t, url, "SELECT count(*) FROM dispatcher.partitions"))

	require.NoError(t, n.trimmer().Round(t.Context()))

	require.Equal(t, 1, count(t, url, "SELECT count(*) FROM dispatcher.partitions WHERE name = 'stays'"))
	require.Zero(t, count(t, url, "SELECT count(*) FROM dispatcher.partitions WHERE name = 'gone'"))
}
