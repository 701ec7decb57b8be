package engine_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/pg"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/store"
)

func pushing(queue string, items ...*queuev1.PushItem) *queuev1.TransactOperation {
	return &queuev1.TransactOperation{Push: &queuev1.PushRequest{Queue: queue, Items: items}}
}

func settling(queue, lease string, settlements ...*queuev1.Settlement) *queuev1.TransactOperation {
	return &queuev1.TransactOperation{Ack: &queuev1.AckRequest{Queue: queue, Lease: lease, Settlements: settlements}}
}

// acking acks everything that was handed out.
func acking(queue string, popped *queuev1.PopResponse) *queuev1.TransactOperation {
	var all []*queuev1.Settlement
	for _, d := range popped.GetDeliveries() {
		all = append(all, ackOf(d))
	}
	return settling(queue, popped.GetLease(), all...)
}

func transacting(ops ...*queuev1.TransactOperation) *queuev1.TransactRequest {
	return &queuev1.TransactRequest{Operations: ops}
}

func (n *node) transact(key string, ops ...*queuev1.TransactOperation) *queuev1.TransactResponse {
	n.t.Helper()
	resp, _, err := n.Transact(n.t.Context(), ten, key, transacting(ops...))
	require.NoError(n.t, err)
	for _, r := range resp.GetResults() {
		require.Equal(n.t, queuev1.TransactStatus_TRANSACT_STATUS_DONE, r.GetStatus())
	}
	return resp
}

func TestATransactionMovesMessagesBetweenQueuesInOneCommit(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	a.push("in", item("p", "1"), item("q", "2"))
	a.push("other", item("p", "3"))
	in, other := a.pop(&queuev1.PopRequest{Queue: "in", Batch: 2}), a.pop(&queuev1.PopRequest{Queue: "other"})

	resp := a.transact("k", acking("in", in), pushing("out", item("p", "one"), item("p", "two")),
		settling("other", other.GetLease(), nackOf(other.GetDeliveries()[0])), pushing("log", item("", "moved")), pushing("out", item("p", "three")))

	for i := range in.GetDeliveries() {
		require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, resp.GetResults()[0].GetAck().GetResults()[i].GetStatus())
	}
	require.Equal(t, int64(1), resp.GetResults()[1].GetPush().GetResults()[1].GetOffset())
	require.Equal(t, int64(2), resp.GetResults()[4].GetPush().GetResults()[0].GetOffset())
	for _, n := range []*node{b, a} {
		out := n.pop(&queuev1.PopRequest{Queue: "out", Group: n.name(), Batch: 10})
		require.Equal(t, []string{"one", "two", "three"}, payloads(out))
		require.Equal(t, resp.GetResults()[1].GetPush().GetResults()[0].GetMessageId(), out.GetDeliveries()[0].GetMessageId())
		require.Equal(t, []string{"moved"}, payloads(n.pop(&queuev1.PopRequest{Queue: "log", Group: n.name()})))
		require.Empty(t, payloads(n.pop(&queuev1.PopRequest{Queue: "in", Batch: 10})))
	}
	again := b.pop(&queuev1.PopRequest{Queue: "other", Wait: seconds(20)})
	require.Equal(t, int32(2), again.GetDeliveries()[0].GetAttempt())
}

// name tells the nodes of a test apart.
func (n *node) name() string { return fmt.Sprintf("%p", n) }

// trips counts round trips: batches, and statements that are sent alone.
type trips struct{ atomic.Int64 }

func (c *trips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.Add(1)
	return ctx
}

func (*trips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.Add(1)
	return ctx
}

func (*trips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (*trips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func TestATransactionIsThreeRoundTripsAndLeavesTheViewsCurrent(t *testing.T) {
	t.Parallel()
	c := &trips{}
	n := newNode(t, database(t), nodeOptions{
		pool: func(o *pg.Options) { o.Tracers = append(o.Tracers, c) }, cfg: func(c *engine.Config) { c.RepollMin, c.RepollMax = 1<<40, 1<<40 },
	})
	hand := func(i int) {
		n.push("in", item("p", strconv.Itoa(i)))
		in := n.pop(&queuev1.PopRequest{Queue: "in"})
		n.transact(strconv.Itoa(i), acking("in", in), pushing("out", item("p", strconv.Itoa(i))))
	}
	hand(0)
	hand(1)
	before, loads, lost := c.Load(), n.metric("view_loads_total"), n.metric("work_lost_total")

	hand(2)

	require.EqualValues(t, 1+1+3, c.Load()-before, "a push, a pop, and a transaction")
	require.InDelta(t, loads, n.metric("view_loads_total"), 0)
	require.InDelta(t, lost, n.metric("work_lost_total"), 0)
	require.InDelta(t, 3, n.metric("transactions_total"), 0)
}

// standing is what may not change where a transaction is refused.
func (n *node) standing() [5]int {
	n.t.Helper()
	var s [5]int
	require.NoError(n.t, n.db.QueryRow(n.t.Context(), `SELECT (SELECT coalesce(sum(head), 0) FROM dispatcher.shards),
		(SELECT coalesce(sum(version), 0) FROM dispatcher.group_shards), (SELECT count(*) FROM dispatcher.idempotency_keys),
		(SELECT count(*) FROM dispatcher.dead_letters), (SELECT count(*) FROM dispatcher.request_keys)`).Scan(&s[0], &s[1], &s[2], &s[3], &s[4]))
	return s
}

func TestNothingOfATransactionIsDoneIfOneOperationIsRefused(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"max_message_bytes": 100, "max_queue_messages": 3}`)
	n.push("q", keyedItem("first"))
	n.push("in", item("p", "1"), item("p", "2"), item("p", "3"), item("o", "4"))
	gone := n.pop(&queuev1.PopRequest{Queue: "in", Partition: "o"})
	settled := n.pop(&queuev1.PopRequest{Queue: "in", Partition: "p"})
	n.ackAll("in", settled.GetLease())
	_, err := n.Release(t.Context(), ten, &queuev1.ReleaseRequest{Queue: "in", Lease: gone.GetLease()})
	require.NoError(t, err)
	held := n.pop(&queuev1.PopRequest{Queue: "in", Partition: "p", Batch: 2})
	_, err = n.Push(t.Context(), "foreign", &queuev1.PushRequest{Queue: "in", Items: []*queuev1.PushItem{item("p", "x")}})
	require.NoError(t, err)
	foreign, err := n.Pop(t.Context(), "foreign", &queuev1.PopRequest{Queue: "in"})
	require.NoError(t, err)
	first := held.GetDeliveries()[0]
	good, fine := settling("in", held.GetLease(), ackOf(first)), pushing("out", item("p", "x"))
	before := n.standing()
	for name, c := range map[string]struct {
		bad   *queuev1.TransactOperation
		code  string // of an item
		err   error
		field string
	}{
		"lease given back":     {bad: acking("in", gone), err: engine.ErrStaleEpoch, field: "ack.lease"},
		"lease of another":     {bad: acking("in", foreign), err: engine.ErrStaleEpoch, field: "ack.lease"},
		"no such queue":        {bad: acking("none", held), err: store.ErrQueueNotFound, field: "ack.queue"},
		"settled before":       {bad: acking("in", settled), code: "ALREADY_SETTLED", field: "ack.settlements[0]"},
		"nack of what is done": {bad: settling("in", settled.GetLease(), nackOf(settled.GetDeliveries()[0])), code: "", err: engine.ErrStaleEpoch, field: "ack"},
		"not of the lease": {
			bad: settling("in", held.GetLease(), &queuev1.Settlement{MessageId: gone.GetDeliveries()[0].GetMessageId()}), code: "NOT_LEASED",
			field: "ack.settlements[0]",
		},
		"acked behind a failed one": {
			bad: settling("in", held.GetLease(), nackOf(first), ackOf(held.GetDeliveries()[1])), code: "BEHIND_FAILED", field: "ack.settlements[1]",
		},
		"message too large": {bad: pushing("q", item("p", strings.Repeat("x", 101))), code: "MESSAGE_TOO_LARGE", field: "push.items[0].payload"},
		"key of another":    {bad: pushing("q", keyedItem("second")), code: "IDEMPOTENCY_KEY_REUSED", field: "push.items[0].idempotency_key"},
		"queue full":        {bad: pushing("q", item("p", "1"), item("p", "2"), item("p", "3")), field: "push.queue"},
	} {
		ops := []*queuev1.TransactOperation{fine, c.bad, good}
		if strings.HasPrefix(name, "acked behind") {
			ops = ops[:2]
		}
		_, _, err := n.Transact(t.Context(), ten, name, transacting(ops...))

		refused := &engine.RefusedError{}
		require.ErrorAs(t, err, &refused, name)
		require.Len(t, refused.Faults, 1, name)
		fault := refused.Faults[1]
		require.True(t, strings.HasPrefix(fault.Field, "operations[1]."+c.field), "%s: %s", name, fault.Field)
		switch {
		case c.err != nil && fault.Err != nil:
			require.ErrorIs(t, fault.Err, c.err, name)
		case name == "queue full":
			requireFull(t, fault.Err, "max_queue_messages")
		case c.code != "":
			require.Equal(t, c.code, fault.Item.GetCode(), name)
		}
		require.Equal(t, before, n.standing(), name)
	}
	require.InDelta(t, 10, n.metric("transactions_refused_total"), 0)
	n.transact("good", fine, good) // and all of it was good by itself
}

func TestAnAckOfWhatIsSettledIsDoneWhereNothingIsPushed(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("a", item("p", "1"))
	n.push("b", item("p", "1"))
	settled, held := n.pop(&queuev1.PopRequest{Queue: "a"}), n.pop(&queuev1.PopRequest{Queue: "b"})
	n.ackAll("a", settled.GetLease())

	resp := n.transact("k", acking("a", settled), acking("b", held))

	require.Equal(t, queuev1.AckStatus_ACK_STATUS_ALREADY_SETTLED, resp.GetResults()[0].GetAck().GetResults()[0].GetStatus())
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, resp.GetResults()[1].GetAck().GetResults()[0].GetStatus())
}

func TestARepeatedTransactionIsAnsweredAsTheFirstWhateverBecameOfItsLeases(t *testing.T) {
	t.Parallel()
	url := database(t)
	a, b := newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})
	a.push("in", item("p", "1"))
	in := a.pop(&queuev1.PopRequest{Queue: "in"})
	ops := []*queuev1.TransactOperation{acking("in", in), pushing("out", item("p", "x"))}
	first := a.transact("k", ops...)
	_, err := a.control.DeleteQueue(t.Context(), byAdmin, "in", true)
	require.NoError(t, err)

	for _, n := range []*node{a, b} {
		again, replayed, err := n.Transact(t.Context(), ten, "k", transacting(ops...))
		require.NoError(t, err)
		require.True(t, replayed)
		require.Equal(t, first.GetResults()[1].GetPush().GetResults()[0].GetMessageId(), again.GetResults()[1].GetPush().GetResults()[0].GetMessageId())
	}
	_, _, err = b.Transact(t.Context(), ten, "k", transacting(ops[1]))
	require.ErrorIs(t, err, idempotency.ErrReused)
	require.Equal(t, []string{"x"}, payloads(b.pop(&queuev1.PopRequest{Queue: "out", Batch: 10})))
}

func TestATransactionWhoseCommitIsLostIsDoneOnce(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]int32{"answer lost": cutAnswer, "request lost": cutRequest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &cutter{}
			n := newNode(t, database(t), nodeOptions{pool: c.pool})
			n.push("in", item("p", "1"))
			n.push("out", item("p", "0"))
			in := n.pop(&queuev1.PopRequest{Queue: "in"})
			word := "the word of the last message"
			c.word.Store(&word)

			c.armed.Store(how)
			resp, replayed, err := n.Transact(t.Context(), ten, "k", transacting(acking("in", in), pushing("out", item("p", word))))
			require.NoError(t, err)

			require.Equal(t, int32(1), c.did.Load())
			require.False(t, replayed, "it was asked for once")
			require.Equal(t, int64(1), resp.GetResults()[1].GetPush().GetResults()[0].GetOffset())
			require.Equal(t, []string{"0", word}, payloads(n.pop(&queuev1.PopRequest{Queue: "out", Batch: 10})))
			require.Empty(t, n.pop(&queuev1.PopRequest{Queue: "in"}).GetLease())
			require.Zero(t, n.leases()-1, "only that of the last pop")
		})
	}
}

// The view of before may lack what the transaction did. What is planned on it costs a lost race, and after a failover it could be of another history.
func TestWhatATransactionWithoutAnAnswerWasPlannedOnIsReadAnew(t *testing.T) {
	t.Parallel()
	c := &cutter{}
	n := newNode(t, database(t), nodeOptions{pool: c.pool})
	n.push("in", item("p", "1"), item("q", "2"))
	in := n.pop(&queuev1.PopRequest{Queue: "in", Batch: 1})
	loads, lost := n.metric("view_loads_total"), n.metric("work_lost_total")
	word := "the word of the last message"
	c.word.Store(&word)

	c.armed.Store(cutAnswer)
	n.transact("k", acking("in", in), pushing("out", item("p", word)))
	next := n.pop(&queuev1.PopRequest{Queue: "in"})

	require.Equal(t, int32(1), c.did.Load())
	require.Equal(t, []string{"2"}, payloads(next))
	require.InDelta(t, 1, n.metric("view_loads_total")-loads, 0)
	require.InDelta(t, lost, n.metric("work_lost_total"), 0)
}

func TestTransactionsOverTheSameQueuesInOppositeOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	url := database(t)
	nodes := []*node{newNode(t, url, nodeOptions{}), newNode(t, url, nodeOptions{})}
	const rounds = 40
	names := []string{"a", "b"}
	for _, name := range names {
		nodes[0].push(name, item("seed", "0"))
	}
	var moved atomic.Int64
	var group sync.WaitGroup
	for i, n := range nodes {
		for worker := range 2 {
			group.Go(func() {
				for round := range rounds {
					from, to := names[(i+round)%2], names[(i+round+1)%2]
					key := strconv.Itoa(i) + "/" + strconv.Itoa(worker) + "/" + strconv.Itoa(round)
					n.push(from, item(key, key))
					popped := n.pop(&queuev1.PopRequest{Queue: from, Partition: key, Wait: seconds(20)})
					back := n.pop(&queuev1.PopRequest{Queue: to, Group: "watch"})
					ops := []*queuev1.TransactOperation{acking(from, popped), pushing(to, item("moved", key)), pushing(from, item("kept", key))}
					if back.GetLease() != "" {
						ops = append(ops, acking(to, back))
					}
					n.transact(key, ops...)
					moved.Add(1)
				}
			})
		}
	}
	group.Wait()

	require.EqualValues(t, 2*2*rounds, moved.Load())
	require.Equal(t, 0, count(t, url, "SELECT deadlocks::int FROM pg_stat_database WHERE datname = current_database()"))
	require.Equal(t, 2+3*2*2*rounds, count(t, url, "SELECT sum(head)::int FROM dispatcher.shards"))
}

func TestWaitingPopsAndTailsAreToldOfATransactionEverywhere(t *testing.T) {
	t.Parallel()
	url := database(t)
	hints := &carrier{}
	cfg := func(c *engine.Config) { c.RepollMin, c.RepollMax = 1<<40, 1<<40 } // only a hint brings news
	a := newNode(t, url, nodeOptions{hints: hints, cfg: cfg})
	b := newNode(t, url, nodeOptions{hints: hints, cfg: cfg})
	hints.join(b)
	a.push("q", item("p", "0"))
	id, _ := a.locate(queue.Latest)
	tail, err := b.Follow(t.Context(), ten, "q", id, []message.Offset{1})
	require.NoError(t, err)
	fromNow := &queuev1.GroupOptions{Start: "latest"}
	here := a.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Group: "here", GroupOptions: fromNow, Wait: seconds(60)})
	there := b.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Group: "there", GroupOptions: fromNow, Wait: seconds(60)})
	a.awaitParked(1)
	b.awaitParked(1)
	reads := a.metric("view_loads_total")

	a.transact("k", pushing("q", item("p", "x")), pushing("other", item("p", "y")))

	require.Equal(t, []string{"x"}, payloads(<-here))
	require.Equal(t, []string{"x"}, payloads(<-there))
	require.Equal(t, []string{"x"}, b.follow(tail, 1, 2))
	require.InDelta(t, reads, a.metric("view_loads_total"), 0)
}
