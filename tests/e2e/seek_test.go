package e2e

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pg"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

func TestASeekOnOneHostFencesALeaseHeldThroughTheOther(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	for i := range 4 {
		mustPush(t, a, "q", "p", strconv.Itoa(i))
	}
	_, err := mustPop(t, a, "q", postrider.PopOptions{Group: "g"}).Ack(t.Context())
	require.NoError(t, err)
	held := mustPop(t, a, "q", postrider.PopOptions{Group: "g", Batch: 2})

	moved, err := b.Seek(t.Context(), "q", "g", postrider.Place{At: "earliest"})

	require.NoError(t, err)
	require.EqualValues(t, 1, moved.GetFencedLeases())
	require.EqualValues(t, 1, moved.GetPositions()[0].GetFrom())
	_, err = held.Ack(t.Context())
	require.Equal(t, "STALE_EPOCH", postrider.Code(err), "%v", err)
	require.Equal(t, []string{"0", "1", "2", "3"}, payloads(mustPop(t, a, "q", postrider.PopOptions{Group: "g", Batch: 9})))
}

func TestASeekOfOnePartitionOnOneHostLeavesTheOthersLeasedThroughTheOther(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Push(t.Context(), "q", message("x", "x0"), message("y", "y0"), message("x", "x1"), message("y", "y1"))
	require.NoError(t, err)
	held := mustPop(t, a, "q", postrider.PopOptions{Group: "g", Batch: 4})
	require.Len(t, held.Deliveries, 4)

	_, err = b.Seek(t.Context(), "q", "g", postrider.Place{Partition: "x", Offsets: []int64{2}})
	require.NoError(t, err)

	require.Equal(t, []string{"x1"}, payloads(mustPop(t, b, "q", postrider.PopOptions{Group: "g", Batch: 9})), "x0 is passed over, y is leased")
	_, err = held.Ack(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, groupDepth(t, a), "both of y are acked, x1 is leased")
}

// The dispatcher dies when all shards are moved and only the audit entry is missing: nothing of it has happened, and another dispatcher does it.
func TestKillingADispatcherInASeekLeavesTheGroupBeforeOrAfterIt(t *testing.T) {
	t.Parallel()
	p := fleet.StartProcesses(t, &binaries, 2)
	b := p.Client(t, 1)
	_, err := b.Configure(t.Context(), "q", &queuev1.QueueOptions{Shards: new(int32(8))})
	require.NoError(t, err)
	const total = 32
	for i := range total {
		mustPush(t, b, "q", "p"+strconv.Itoa(i), "x")
	}
	_, err = b.CreateGroup(t.Context(), "q", "g", &queuev1.GroupOptions{Start: "latest"})
	require.NoError(t, err)
	db, block := outboxOf(t, p)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	unblock := block()
	sought := make(chan error, 1)
	a := p.Client(t, 0)
	go func() {
		_, err := a.Seek(ctx, "q", "g", postrider.Place{At: "earliest"})
		sought <- err
	}()
	eventually(t, func() error {
		var waits bool
		err := db.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'audit.outbox'::regclass AND NOT granted)").Scan(&waits)
		if err == nil && !waits {
			err = errors.New("the seek does not wait for the outbox")
		}
		return err
	})
	p.Hosts[0].Dispatcher.Kill()
	cancel() // so that nobody repeats it
	require.Error(t, <-sought)
	unblock()

	require.Zero(t, groupDepth(t, b), "the group stands where it stood")
	_, err = b.Seek(t.Context(), "q", "g", postrider.Place{At: "earliest"})
	require.NoError(t, err)
	require.EqualValues(t, total, groupDepth(t, b))
	var entries int
	require.NoError(t, db.QueryRow(t.Context(), "SELECT count(*) FROM audit.outbox WHERE action = 'group.seek'").Scan(&entries))
	require.Equal(t, 1, entries)
}

// outboxOf opens the database of processes. What block returns lets control actions write their audit entries again, and waits for the end of those it kept.
func outboxOf(t *testing.T, p *fleet.Processes) (db *pg.DB, block func() (unblock func())) {
	t.Helper()
	db, err := pg.Open(t.Context(), p.Postgres.DSN("postgres"), pg.Options{MaxConns: 2})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	return db, func() func() {
		blocker, err := db.Begin(t.Context())
		require.NoError(t, err)
		_, err = blocker.Exec(t.Context(), "LOCK TABLE audit.outbox IN EXCLUSIVE MODE")
		require.NoError(t, err)
		return func() {
			require.NoError(t, blocker.Rollback(t.Context()))
			_, err := db.Exec(t.Context(), "DO 'BEGIN LOCK TABLE audit.outbox IN EXCLUSIVE MODE; END'") // got when the dead one's transaction has ended
			require.NoError(t, err)
		}
	}
}

func message(partition, payload string) postrider.Message {
	return postrider.Message{Partition: partition, Payload: []byte(payload)}
}

// groupDepth is the depth of the only group of queue "q".
func groupDepth(t *testing.T, c *postrider.Client) int64 {
	t.Helper()
	q, err := c.Queue(t.Context(), "q")
	require.NoError(t, err)
	return q.GetGroups()[0].GetDepth()
}
