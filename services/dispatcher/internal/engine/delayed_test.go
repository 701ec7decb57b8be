package engine_test

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/queue"
)

// inAnHour is an item to be delivered after an hour.
func inAnHour(partition, payload string) *queuev1.PushItem {
	it := item(partition, payload)
	it.Delay = durationpb.New(time.Hour)
	return it
}

// waiting counts the messages that wait for their time.
func (n *node) waiting() (count int) {
	n.t.Helper()
	require.NoError(n.t, n.db.QueryRow(n.t.Context(), "SELECT count(*) FROM dispatcher.delayed").Scan(&count))
	return count
}

// comeDue makes all that waits due, and moves it.
func (n *node) comeDue() {
	n.t.Helper()
	_, err := n.db.Exec(n.t.Context(), "UPDATE dispatcher.delayed SET available_at = now() - interval '1 s'")
	require.NoError(n.t, err)
	for {
		due, err := n.control.FlushDue(n.t.Context(), time.Time{}, nil)
		require.NoError(n.t, err)
		if !due.More {
			return
		}
		n.Arrived(due)
	}
}

func TestADelayedMessageIsAcceptedUnderAPendingIDAndOthersOfItsRequestGoOn(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	at := time.Now().Add(time.Hour)
	timed := item("a", "2")
	timed.DeliverAt = timestamppb.New(at.Add(time.Nanosecond))
	past := item("a", "3")
	past.DeliverAt = timestamppb.New(time.Unix(0, 0))
	zero := item("a", "4")
	zero.Delay = durationpb.New(0)

	results := n.push("q", item("a", "1"), timed, past, zero, inAnHour("b", "5"))
	now := payloads(n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10}))
	n.comeDue()
	then := payloads(n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10, Partition: "b"}))

	require.Equal(t, []string{"1", "3", "4"}, now)
	require.Equal(t, []string{"5"}, then)
	require.Regexp(t, "^p_[1-9A-Za-z]+$", results[1].GetMessageId())
	require.Zero(t, results[1].GetOffset())
	require.True(t, results[1].GetAvailableAt().AsTime().Equal(at.Truncate(time.Microsecond).Add(time.Microsecond)), "never early, not by a nanosecond")
	require.WithinDuration(t, at, results[4].GetAvailableAt().AsTime(), time.Minute)
	require.Nil(t, results[2].GetAvailableAt())
	require.EqualValues(t, 2, results[3].GetOffset())
}

func TestADuplicateOfADelayedMessageIsToldItsPendingIDAlsoOnceItCame(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	keyed := func(payload string) *queuev1.PushItem {
		it := inAnHour("a", payload)
		it.IdempotencyKey = "k"
		return it
	}
	soon := keyed("x")
	soon.Delay = nil
	send := func(items ...*queuev1.PushItem) []*queuev1.PushResult {
		resp, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: items})
		require.NoError(t, err)
		return resp.GetResults()
	}

	first := send(keyed("x"), keyed("x"), keyed("y"))
	second := send(keyed("x"), soon)
	n.comeDue()
	third := send(keyed("x"))

	id := first[0].GetMessageId()
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_QUEUED, first[0].GetStatus())
	for _, r := range []*queuev1.PushResult{first[1], second[0], third[0]} {
		require.Equal(t, queuev1.PushStatus_PUSH_STATUS_DUPLICATE, r.GetStatus())
		require.Equal(t, id, r.GetMessageId())
		require.Equal(t, first[0].GetAvailableAt().AsTime(), r.GetAvailableAt().AsTime())
	}
	for _, r := range []*queuev1.PushResult{first[2], second[1]} {
		require.Equal(t, "IDEMPOTENCY_KEY_REUSED", r.GetError().GetCode())
	}
	require.Equal(t, []string{"x"}, n.stored("q"))
}

func TestARepeatedRequestWithDelayedItemsIsAnsweredAsTheFirstTime(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	far := item("c", "3")
	far.DeliverAt = timestamppb.New(time.Now().Add(queue.MaxDeliveryDelay + time.Hour))
	req := &queuev1.PushRequest{Queue: "q", IdempotencyKey: "r", Items: []*queuev1.PushItem{item("a", "1"), inAnHour("b", "2"), far}}

	first, err := n.Push(t.Context(), ten, req)
	require.NoError(t, err)
	second, err := n.Push(t.Context(), ten, req)
	require.NoError(t, err)

	require.False(t, first.GetReplayed())
	require.True(t, second.GetReplayed())
	require.Equal(t, first.GetResults()[0].GetOffset(), second.GetResults()[0].GetOffset())
	require.Equal(t, first.GetResults()[1].GetMessageId(), second.GetResults()[1].GetMessageId())
	require.Equal(t, first.GetResults()[1].GetAvailableAt().AsTime(), second.GetResults()[1].GetAvailableAt().AsTime())
	for _, resp := range []*queuev1.PushResponse{first, second} {
		require.Equal(t, "OUT_OF_RANGE", resp.GetResults()[2].GetError().GetCode())
		require.Equal(t, "deliver_at", resp.GetResults()[2].GetError().GetField())
	}
	require.Equal(t, 1, n.waiting())
}

func TestTimesThatNobodyCanMeanAreRefusedAndNothingIsStored(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	for name, change := range map[string]func(*queuev1.PushItem){
		"too long":  func(it *queuev1.PushItem) { it.Delay = durationpb.New(queue.MaxDeliveryDelay + time.Nanosecond) },
		"negative":  func(it *queuev1.PushItem) { it.Delay = durationpb.New(-time.Nanosecond) },
		"no span":   func(it *queuev1.PushItem) { it.Delay = &durationpb.Duration{Seconds: 1 << 60} },
		"no time":   func(it *queuev1.PushItem) { it.DeliverAt = &timestamppb.Timestamp{Nanos: -1} },
		"far ahead": func(it *queuev1.PushItem) { it.DeliverAt = &timestamppb.Timestamp{Seconds: 253402300799} },
		"both": func(it *queuev1.PushItem) {
			it.Delay, it.DeliverAt = durationpb.New(time.Hour), timestamppb.New(time.Now().Add(time.Hour))
		},
	} {
		it := item("a", "1")
		change(it)
		resp, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{it, inAnHour("a", "2")}})
		require.NoError(t, err, name)
		require.Equal(t, "OUT_OF_RANGE", resp.GetResults()[0].GetError().GetCode(), name)
		require.Equal(t, queuev1.PushStatus_PUSH_STATUS_QUEUED, resp.GetResults()[1].GetStatus(), name)
	}
	require.Equal(t, 6, n.waiting())
	require.Empty(t, n.stored("q"))
}

func TestRacingDelayedPushesWithOneKeyHaveOneWinner(t *testing.T) {
	t.Parallel()
	url := database(t)
	nodes := []*node{newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})}
	const rounds = 10
	ids := make([]sync.Map, rounds)
	queued := make([]sync.Map, rounds)

	var wg sync.WaitGroup
	for racer := range 4 {
		wg.Go(func() {
			for round := range rounds {
				it := inAnHour("a", "x")
				it.IdempotencyKey = strconv.Itoa(round)
				resp, err := nodes[racer%2].Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{it}})
				if err != nil {
					t.Error(err)
					return
				}
				r := resp.GetResults()[0]
				ids[round].Store(r.GetMessageId(), true)
				if r.GetStatus() == queuev1.PushStatus_PUSH_STATUS_QUEUED {
					queued[round].Store(racer, true)
				}
			}
		})
	}
	wg.Wait()

	size := func(m *sync.Map) (n int) {
		m.Range(func(any, any) bool { n++; return true })
		return n
	}
	for round := range rounds {
		require.Equal(t, 1, size(&ids[round]))
		require.Equal(t, 1, size(&queued[round]))
	}
	require.Equal(t, rounds, nodes[0].waiting())
}

func TestADelayedPushWhoseAnswerIsLostIsAcceptedOnce(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]int32{"answer lost": cutAnswer, "request lost": cutRequest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &cutter{}
			n := newNode(t, database(t), nodeOptions{pool: c.pool})
			n.push("q", item("a", "0"), inAnHour("a", "warm"))

			word := "the one that is cut" // the frame is in the last of the writes
			c.word.Store(&word)
			c.armed.Store(how)
			results := n.push("q", inAnHour("a", word))

			require.Equal(t, int32(1), c.did.Load())
			require.NotEmpty(t, results[0].GetMessageId())
			require.Equal(t, 2, n.waiting())
		})
	}
}

func TestAParkedPopIsServedWhenAMessageComesDue(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.push("q", inAnHour("a", "1"))
	got := make(chan []string, 1)
	go func() { got <- payloads(n.pop(&queuev1.PopRequest{Queue: "q", Wait: seconds(60)})) }()
	eventually(t, func() error { return wantf(n.metric("parked_pops") == 1, "not parked") })

	n.comeDue()

	require.Equal(t, []string{"1"}, <-got)
	require.InDelta(t, 1, n.metric("messages_delayed_total"), 0)
	require.InDelta(t, 1, n.metric("messages_due_total"), 0)
}

func TestOnlyAMessageThatIsDueSoonerThanTheNextLookIsTold(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.WillLook(time.Now().Add(2 * time.Hour))
	n.push("q", inAnHour("a", "sooner"))
	<-n.DueSooner()

	n.WillLook(time.Now())
	n.push("q", inAnHour("a", "later"))
	told := false
	select {
	case <-n.DueSooner():
		told = true
	default:
	}
	n.WillLook(time.Time{})
	n.push("q", inAnHour("a", "while it looks"))

	require.False(t, told)
	<-n.DueSooner()
}
