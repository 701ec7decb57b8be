package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pg"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/engine"
)

// outside is a transaction of a session that is no dispatcher's; it ends with the test at the latest.
func outside(t *testing.T, url string) pgx.Tx {
	t.Helper()
	conn, err := pg.Connect(t.Context(), url, pg.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) })
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	return tx
}

func TestAPopTellsWhatItsSettlementCameTo(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("a", "1"), item("a", "2"), item("a", "3"))
	first := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 2})
	settle := &queuev1.AckRequest{Lease: first.GetLease(), AckRest: true}

	done := n.pop(&queuev1.PopRequest{Queue: "q", Settle: settle})
	n.ackAll("q", done.GetLease())
	none := n.pop(&queuev1.PopRequest{Queue: "q", Settle: settle})

	require.Equal(t, []string{"3"}, payloads(done))
	require.Equal(t, int32(2), done.GetRestAcked())
	require.Nil(t, done.GetSettleError())
	require.Equal(t, "STALE_EPOCH", none.GetSettleError().GetCode())
	require.Zero(t, none.GetRestAcked())
}

func TestAPopThatLeasesTellsThatItsSettlementFailed(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{
		cfg:  func(c *engine.Config) { c.Patience = 200 * time.Millisecond },
		pool: func(o *pg.Options) { o.RuntimeParams["lock_timeout"] = "100ms" },
	})
	n.push("q", item("a", "1"))
	held := n.pop(&queuev1.PopRequest{Queue: "q", Group: "one"})
	n.ackAll("q", n.pop(&queuev1.PopRequest{Queue: "q", Group: "two"}).GetLease())
	n.push("q", item("a", "2"))
	_, err := outside(t, url).Exec(t.Context(), `SELECT FROM dispatcher.group_shards s WHERE s.id = ANY (
		SELECT unnest(g.group_shard_ids) FROM dispatcher.groups g WHERE g.name = 'one') FOR UPDATE`)
	require.NoError(t, err)

	popped := n.pop(&queuev1.PopRequest{Queue: "q", Group: "two", Wait: seconds(10), Settle: &queuev1.AckRequest{
		Lease: held.GetLease(), Settlements: []*queuev1.Settlement{{MessageId: held.GetDeliveries()[0].GetMessageId()}},
	}})

	require.Equal(t, []string{"2"}, payloads(popped))
	require.Equal(t, "DATABASE_UNAVAILABLE", popped.GetSettleError().GetCode())
	require.Len(t, popped.GetSettled(), 1)
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_REFUSED, popped.GetSettled()[0].GetStatus())
}
