package engine_test

import (
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/spool/spooltest"
	"postrider.dev/services/dispatcher/internal/store"
)

// lanes makes the queue "q" with lanes of so many shards.
func (n *node) lanes(lanes, shards int) *node {
	n.t.Helper()
	_, err := n.control.Configure(n.t.Context(), tenant.Caller{Tenant: ten, Actor: "test", Role: tenant.Admin}, "q",
		queue.Patch{Set: queue.Options{Lanes: &lanes, Shards: &shards}})
	require.NoError(n.t, err)
	return n
}

func at(priority int32, partition, payload string) *queuev1.PushItem {
	it := item(partition, payload)
	it.Priority = priority
	return it
}

// hourly never polls: what is found is found by itself.
func hourly(c *engine.Config) { c.RepollMin, c.RepollMax = time.Hour, time.Hour }

func TestAPopTakesFromTheHighestLaneDown(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 4} {
		t.Run(fmt.Sprintf("shards=%d", shards), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, database(t), nodeOptions{}).lanes(3, shards)
			n.push("q", at(0, "a", "low 1"), at(2, "a", "high 1"), at(1, "a", "mid 1"), at(0, "a", "low 2"))
			n.push("q", at(1, "a", "mid 2"), at(2, "a", "high 2"))

			first := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 3})
			n.ackAll("q", first.GetLease())
			second := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})

			require.Equal(t, []string{"high 1", "high 2", "mid 1"}, payloads(first))
			require.Equal(t, []string{"mid 2", "low 1", "low 2"}, payloads(second))
			require.Equal(t, []int32{2, 2, 1}, priorities(first))
			require.Equal(t, []int32{1, 0, 0}, priorities(second))
		})
	}
}

func priorities(resp *queuev1.PopResponse) []int32 {
	var out []int32
	for _, d := range resp.GetDeliveries() {
		out = append(out, d.GetPriority())
	}
	return out
}

func TestAPartitionInTwoLanesIsTwoPartitions(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{}).lanes(2, 2)
	n.push("q", at(0, "a", "low 1"), at(1, "a", "high 1"), at(0, "a", "low 2"), at(1, "a", "high 2"))

	high := n.pop(&queuev1.PopRequest{Queue: "q"})
	low := n.pop(&queuev1.PopRequest{Queue: "q"})
	none := n.pop(&queuev1.PopRequest{Queue: "q"})
	n.ackAll("q", low.GetLease())
	lower := n.pop(&queuev1.PopRequest{Queue: "q"})
	n.ackAll("q", high.GetLease())
	higher := n.pop(&queuev1.PopRequest{Queue: "q"})

	require.Equal(t, []string{"high 1"}, payloads(high))
	require.Equal(t, []string{"low 1"}, payloads(low), "a lease in the other lane does not block it")
	require.Empty(t, none.GetLease(), "inside a lane it does")
	require.Equal(t, []string{"low 2"}, payloads(lower))
	require.Equal(t, []string{"high 2"}, payloads(higher))
}

func TestALowLaneIsServedWhileAHighOneIsStuckOrEmpty(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{}).lanes(3, 1)
	items := []*queuev1.PushItem{at(0, "a", "low")}
	for i := range 500 {
		items = append(items, at(2, "stuck", strconv.Itoa(i)))
	}
	n.push("q", items...)
	held := n.pop(&queuev1.PopRequest{Queue: "q"})
	_, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{
		{MessageId: held.GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_NACK, Delay: durationpb.New(time.Hour)},
	}})
	require.NoError(t, err)

	low := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})

	require.Equal(t, []string{"low"}, payloads(low))
}

func TestANamedPopLooksIntoEachLaneTheHighestFirst(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{}).lanes(3, 4)
	n.push("q", at(2, "b", "other"), at(0, "a", "low"), at(1, "a", "mid"))
	n.push("q", at(2, "a", "high"))

	one := n.pop(&queuev1.PopRequest{Queue: "q", Partition: "a"})
	rest := n.pop(&queuev1.PopRequest{Queue: "q", Partition: "a", Batch: 10})
	_, err := n.Release(t.Context(), ten, &queuev1.ReleaseRequest{Queue: "q", Lease: rest.GetLease()})
	require.NoError(t, err)
	again := n.pop(&queuev1.PopRequest{Queue: "q", Partition: "a", Batch: 10})

	require.Equal(t, []string{"high"}, payloads(one))
	require.Equal(t, []string{"mid", "low"}, payloads(rest))
	require.Equal(t, []string{"mid", "low"}, payloads(again), "a lease over several lanes is one")
}

func TestAPushIntoAnyLaneWakesAParkedPop(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{cfg: hourly}).lanes(3, 2)
	for i := range 30 {
		priority, name := int32(i%3), ""
		if i%2 == 0 {
			name = "a"
		}
		parked := n.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Partition: name, Wait: seconds(20)})
		n.awaitParked(1)

		n.push("q", at(priority, "a", strconv.Itoa(i)))

		resp := <-parked
		require.Equal(t, []string{strconv.Itoa(i)}, payloads(resp))
		require.Equal(t, []int32{priority}, priorities(resp))
		n.ackAll("q", resp.GetLease())
	}
}

// One commit brings something for several lanes: who waits for a single message gets the most urgent one.
func TestAParkedPopGetsTheHighestOfWhatOneCommitBrings(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{}).lanes(3, 2)
	for i := range 50 {
		parked := n.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Wait: seconds(20)})
		n.awaitParked(1)

		n.push("q", at(0, "a", "low"), at(2, strconv.Itoa(i), "high"), at(1, "b", "mid"))

		resp := <-parked
		require.Equal(t, []string{"high"}, payloads(resp))
		n.ackAll("q", resp.GetLease())
		n.ackAll("q", n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10}).GetLease())
	}
}

// Every message finds one of those who wait, whatever lanes they are in: a pop that was woken for one lane and served from another passes the wake on.
func TestWhoWaitsIsServedFromEveryLane(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{cfg: hourly}).lanes(3, 2)
	const each = 100
	for range 3 {
		parked := make([]<-chan *queuev1.PopResponse, 3*each)
		for i := range parked {
			parked[i] = n.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Wait: seconds(60)})
		}
		n.awaitParked(len(parked))
		for i := range each {
			n.push("q", at(0, fmt.Sprintf("a%d", i), "x"), at(1, fmt.Sprintf("a%d", i), "x"), at(2, fmt.Sprintf("a%d", i), "x"))
		}

		for _, p := range parked {
			resp := <-p
			require.NotEmpty(t, resp.GetLease(), "there was a message for each")
			n.ackAll("q", resp.GetLease())
		}
	}
}

// The pops of a dispatcher that has a backlog in a low lane never wait, so nothing but the look at the database brings them what another dispatcher pushed
// into a high one.
func TestAHigherLaneIsNoticedBesideABacklogWithEveryHintLost(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	a.lanes(2, 1)
	b.push("q", at(0, "a", "low"))
	require.Equal(t, []string{"low"}, payloads(b.pop(&queuev1.PopRequest{Queue: "q", Group: "g"})))
	for i := range 20 {
		b.push("q", at(0, strconv.Itoa(i), "low"))
	}

	a.push("q", at(1, "a", "high"))

	eventually(t, func() error {
		got := b.pop(&queuev1.PopRequest{Queue: "q", Group: "g"})
		_, err := b.Release(t.Context(), ten, &queuev1.ReleaseRequest{Queue: "q", Lease: got.GetLease()})
		require.NoError(t, err)
		return wantf(payloads(got)[0] == "high", "still %s", payloads(got)[0])
	})
}

func TestAPriorityWithoutALaneIsRefusedAloneAndNothingOfItIsStored(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{}).lanes(2, 1)

	resp, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{
		at(2, "a", "no lane"), at(1, "a", "good"), at(-1, "a", "negative"),
	}})
	require.NoError(t, err)
	old, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "of one lane", Items: []*queuev1.PushItem{at(1, "a", "no lane")}})
	require.NoError(t, err)

	for _, r := range []*queuev1.PushResult{resp.GetResults()[0], resp.GetResults()[2], old.GetResults()[0]} {
		require.Equal(t, queuev1.PushStatus_PUSH_STATUS_FAILED, r.GetStatus())
		require.Equal(t, []string{"LANE_UNKNOWN", "priority"}, []string{r.GetError().GetCode(), r.GetError().GetField()})
	}
	require.Equal(t, []string{"good"}, payloads(n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})))
	require.Empty(t, n.pop(&queuev1.PopRequest{Queue: "of one lane"}).GetLease())
}

func TestIdempotencyKeysAreOfALane(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{}).lanes(2, 2)
	keyed := func(priority int32) *queuev1.PushItem {
		it := at(priority, "a", "x")
		it.IdempotencyKey = "k"
		return it
	}
	ask := func(priority int32) error {
		_, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", IdempotencyKey: "request", Items: []*queuev1.PushItem{at(priority, "b", "y")}})
		return err
	}

	first := n.push("q", keyed(0), keyed(1))
	again, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{keyed(1)}})
	require.NoError(t, err)

	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, again.GetResults()[0].GetStatus())
	require.Equal(t, first[1].GetMessageId(), again.GetResults()[0].GetMessageId())
	require.NoError(t, ask(0))
	require.NoError(t, ask(0))
	require.ErrorIs(t, ask(1), store.ErrKeyReused, "the same request with another priority is another request")
}

func TestDelayedAndRedrivenMessagesKeepTheirLane(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{}).lanes(3, 2)
	later := at(2, "a", "later")
	later.Delay = durationpb.New(time.Hour)
	n.push("q", at(0, "a", "low"), later)
	n.comeDue()

	came := n.pop(&queuev1.PopRequest{Queue: "q"})
	require.Equal(t, []string{"later"}, payloads(came))
	_, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: came.GetLease(), Settlements: []*queuev1.Settlement{
		{MessageId: came.GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_REJECT},
	}})
	require.NoError(t, err)
	letters, err := n.control.ListDeadLetters(t.Context(), ten, "q", letterFilter())
	require.NoError(t, err)
	done, err := n.control.Redrive(t.Context(), byAdmin, "q", store.RedriveRequest{IDs: []store.DeadLetterID{letters[0].ID}})
	require.NoError(t, err)
	n.Appended(ten, "q", done.Heads)
	again := n.pop(&queuev1.PopRequest{Queue: "q"})

	require.Equal(t, 2, letters[0].Priority)
	require.Equal(t, []string{"later"}, payloads(again))
	require.Equal(t, []int32{2}, priorities(again))
}

func TestBufferedMessagesKeepTheirLane(t *testing.T) {
	t.Parallel()
	s := newSpooling(t, database(t), spooltest.New(), &atomic.Bool{}, 1<<20)
	s.lanes(3, 2)
	s.push("q", at(0, "a", "1"))

	s.cut()
	states := s.put(at(0, "a", "2"), at(2, "a", "3"), at(1, "a", "4"))
	s.mend()
	s.awaitDrained()
	resp := s.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})

	require.Equal(t, []queuev1.PushStatus{buffered, buffered, buffered}, states)
	require.Equal(t, []string{"3", "4", "1", "2"}, payloads(resp))
	require.Equal(t, []int32{2, 1, 0, 0}, priorities(resp))
}

// What was acknowledged is not lost because its queue was made again with fewer lanes meanwhile.
func TestABufferedMessageWhoseLaneIsGoneGoesToTheHighestThereIs(t *testing.T) {
	t.Parallel()
	s := newSpooling(t, database(t), spooltest.New(), &atomic.Bool{}, 1<<20)
	s.lanes(3, 1)
	s.push("q", at(0, "a", "1"))
	s.mode.Store(true)
	states := s.put(at(2, "a", "2"))
	_, err := s.control.DeleteQueue(t.Context(), byAdmin, "q", true)
	require.NoError(t, err)
	s.lanes(2, 1)

	s.mode.Store(false)
	s.awaitDrained()
	resp := s.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})

	require.Equal(t, []queuev1.PushStatus{buffered}, states)
	require.Equal(t, []string{"2"}, payloads(resp))
	require.Equal(t, []int32{1}, priorities(resp))
}

// Partitions of an encrypted queue are placed by a hash of its own, in every lane.
func TestAnEncryptedQueueHasLanesToo(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{keys: master("m", 1)})
	lanes, shards := 2, 3
	n.encrypted(func(o *queue.Options) { o.Lanes, o.Shards = &lanes, &shards })
	n.push("q", at(0, "a", "low"), at(1, "a", "high"), at(1, "b", "other"))

	named := n.pop(&queuev1.PopRequest{Queue: "q", Partition: "a", Batch: 9})
	rest := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 9})

	require.Equal(t, []string{"high", "low"}, payloads(named))
	require.Equal(t, []int32{1, 0}, priorities(named))
	require.Equal(t, []string{"other"}, payloads(rest))
}
