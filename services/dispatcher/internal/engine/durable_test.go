package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/pg"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// While somebody holds the shard, the flush of a push waits inside the database, and so does the answer.
func TestAPushIsAnsweredAfterItsCommitOnly(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.push("q", item("a", "0"))
	holder, err := pg.Connect(t.Context(), url, pg.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = holder.Close(t.Context()) })
	for _, sql := range []string{"BEGIN", "SELECT FROM dispatcher.shards FOR UPDATE"} {
		_, err = holder.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	answered := make(chan error, 1)

	n.PushAsync(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{item("a", "1")}},
		func(_ *queuev1.PushResponse, err error) { answered <- err })
	eventually(t, func() error {
		var waiting int
		err := n.db.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
		return wantf(err == nil && waiting > 0, "the flush does not wait yet (%v)", err)
	})

	select {
	case err := <-answered:
		t.Fatalf("answered before the commit: %v", err)
	case <-clock.Real{}.After(100 * time.Millisecond):
	}
	_, err = holder.Exec(t.Context(), "ROLLBACK")
	require.NoError(t, err)
	require.NoError(t, <-answered)
	require.Equal(t, []string{"0", "1"}, payloads(n.pop(&queuev1.PopRequest{Queue: "q", Batch: 2})))
}

// Rare omissions show in numbers only: after three thousand acks no lease holds anything back and nothing is handed out again.
func TestEveryAckOfManyIsCarriedOut(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	const count = 3000
	n.pushMany("q", count, func(i int) string { return fmt.Sprintf("p%d", i%50) })

	got := 0
	for got < count {
		resp := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 100, Wait: seconds(20)})
		require.NotEmpty(t, resp.GetLease())
		got += len(resp.GetDeliveries())
		n.ackAll("q", resp.GetLease())
	}

	require.Zero(t, n.leases())
	require.Empty(t, n.pop(&queuev1.PopRequest{Queue: "q"}).GetLease())
}
