package engine_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// hasty is a clock that can be put forward.
type hasty struct {
	clock.Real

	ahead atomic.Int64
}

func (c *hasty) Now() time.Time { return c.Real.Now().Add(time.Duration(c.ahead.Load())) }

// TestALeaseInDoubtIsGivenBackAfterATryThatWasTooEarly loses the answer of a pop, and has the next change under the lock come before its time.
func TestALeaseInDoubtIsGivenBackAfterATryThatWasTooEarly(t *testing.T) {
	t.Parallel()
	url := database(t)
	c, clk := &cutter{}, &hasty{}
	n := newNode(t, url, nodeOptions{pool: c.pool, clk: clk})
	n.push("q", item("a", "1"))
	held := n.pop(&queuev1.PopRequest{Queue: "q"})
	n.push("q", item("c", "2"), item("d", "3"))
	n.pop(&queuev1.PopRequest{Queue: "q", Partition: "d"}) // what is in the log is known from here on
	_, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: held.GetLease(), Settlements: []*queuev1.Settlement{
		{MessageId: held.GetDeliveries()[0].GetMessageId(), Action: queuev1.AckAction_ACK_ACTION_NACK, Delay: seconds(2)},
	}})
	require.NoError(t, err)
	lock := outside(t, url)
	_, err = lock.Exec(t.Context(), "SELECT FROM dispatcher.group_shards FOR UPDATE")
	require.NoError(t, err)

	c.armed.Store(cutAnswer)
	first := n.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Partition: "c", Wait: seconds(10)})
	eventually(t, func() error { return wantf(waiting(t, lock) > 0, "the pop has not reached the lock") })
	second := n.popLater(t.Context(), &queuev1.PopRequest{Queue: "q", Partition: "a", Wait: seconds(10)})
	eventually(t, func() error { return wantf(n.metric("pops_open") >= 2, "the second pop has not begun") })
	clk.ahead.Store(int64(2200 * time.Millisecond))
	require.NoError(t, lock.Rollback(t.Context()))

	require.Equal(t, []string{"2"}, payloads(<-first))
	require.Equal(t, []string{"1"}, payloads(<-second))
	require.Equal(t, int32(1), c.did.Load())
	require.Equal(t, 3, n.leases())
}

// waiting counts the sessions that wait for a lock.
func waiting(t *testing.T, tx pgx.Tx) (count int) {
	t.Helper()
	_, err := tx.Exec(t.Context(), "SELECT pg_stat_clear_snapshot()") // else a transaction sees the sessions of its first look
	require.NoError(t, err)
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT count(DISTINCT l.pid) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE NOT l.granted AND a.datname = current_database() AND a.backend_type = 'client backend'`).Scan(&count))
	return count
}
