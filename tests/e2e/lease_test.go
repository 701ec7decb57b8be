package e2e

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/pkg/pg"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/stack"
	"postrider.dev/tests/fleet"
)

// shortLease is as short as a lease may be.
const shortLease = time.Second

func TestAStaleLeasesAckChangesNothingAndSaysSo(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	mustPush(t, a, "orders", "p", "only")
	stale := mustPop(t, a, "orders", postrider.PopOptions{Lease: shortLease})

	fresh := mustPop(t, b, "orders", postrider.PopOptions{Lease: time.Minute}) // once the first lease has run out
	_, err := stale.Ack(t.Context(), stale.Deliveries...)

	require.Equal(t, "STALE_EPOCH", postrider.Code(err))
	require.Equal(t, 2, fresh.Deliveries[0].Attempt)
	require.Equal(t, "STALE_EPOCH", postrider.Code(stale.Renew(t.Context(), time.Minute)), "a stale lease cannot be renewed")
	results, err := fresh.Ack(t.Context(), fresh.Deliveries...)
	require.NoError(t, err)
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, results[0].Status)
	results, err = fresh.Ack(t.Context(), fresh.Deliveries...)
	require.NoError(t, err)
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_ALREADY_SETTLED, results[0].Status, "a repeated ack does not frighten")
}

func TestAnExpiredLeaseThatNobodyTookIsStillAcked(t *testing.T) {
	t.Parallel()
	f := fleet.Start(t, fleet.Options{Change: func(_ int, c *stack.Config) { c.Dispatcher.ReapEvery = time.Minute }})
	c := f.Client(t)
	mustPush(t, c, "orders", "p", "slow")
	lease := mustPop(t, c, "orders", postrider.PopOptions{Lease: shortLease})
	db := f.DB.Open(pg.Options{})
	eventually(t, func() error {
		var left time.Duration
		if err := db.QueryRow(t.Context(), `SELECT expires_at - clock_timestamp() FROM dispatcher.leases`).Scan(&left); err != nil {
			return err
		}
		if left > 0 {
			return fmt.Errorf("the lease has %s left", left)
		}
		return nil
	})

	results, err := lease.Ack(t.Context(), lease.Deliveries...)

	require.NoError(t, err)
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, results[0].Status)
}

func TestAConsumerThatTakesAndNeverAcksLeadsToADeadLetter(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Configure(t.Context(), "fragile", &queuev1.QueueOptions{
		MaxAttempts: new(int32(3)), Backoff: durationpb.New(0), Lease: durationpb.New(shortLease),
	})
	require.NoError(t, err)
	mustPush(t, a, "fragile", "p", "crasher")
	for attempt := 1; attempt <= 3; attempt++ {
		lease := mustPop(t, []*postrider.Client{a, b}[attempt%2], "fragile", postrider.PopOptions{})
		require.Equal(t, attempt, lease.Deliveries[0].Attempt)
	}

	eventually(t, func() error { // nobody pops: the sweep of the dispatchers finds the last expiry
		q, err := a.Queue(t.Context(), "fragile")
		if err != nil {
			return err
		}
		if n := q.GetQueue().GetDeadLetters(); n != 1 {
			return fmt.Errorf("%d dead letters", n)
		}
		return nil
	})

	for d, err := range b.DeadLetters(t.Context(), "fragile", "default") {
		require.NoError(t, err)
		full, err := b.DeadLetter(t.Context(), "fragile", d.GetId())
		require.NoError(t, err)
		require.Equal(t, "crasher", string(full.GetPayload()))
		require.EqualValues(t, 3, full.GetAttempts())
		require.NotEmpty(t, full.GetReason())
		for range 2 {
			_, err = b.Redrive(t.Context(), "fragile", d.GetId())
			require.NoError(t, err)
		}
	}
	again := mustPop(t, a, "fragile", postrider.PopOptions{Batch: 10, Lease: time.Minute})
	require.Equal(t, []string{"crasher"}, payloads(again), "redriven twice, appended once")
}

func TestACrasherInABatchTakesNoNeighboursAlong(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Configure(t.Context(), "mixed", &queuev1.QueueOptions{
		MaxAttempts: new(int32(1)), Backoff: durationpb.New(0), Lease: durationpb.New(shortLease),
	})
	require.NoError(t, err)
	for i := range 10 {
		mustPush(t, a, "mixed", fmt.Sprint("key-", i), strconv.Itoa(i))
	}
	require.Len(t, mustPop(t, a, "mixed", postrider.PopOptions{Batch: 10}).Deliveries, 10) // its consumer crashes on message 7

	acked := map[string]bool{}
	eventually(t, func() error { // each travels alone now; 7 crashes its consumer again
		lease, err := b.Pop(t.Context(), "mixed", postrider.PopOptions{Batch: 10, Wait: time.Second})
		if err != nil || lease == nil {
			return fmt.Errorf("%d acked, %w", len(acked), err)
		}
		for _, d := range lease.Deliveries {
			if string(d.Payload) == "7" {
				continue
			}
			results, err := lease.Ack(t.Context(), d)
			if err != nil || results[0].Err != nil {
				return fmt.Errorf("ack: %w %w", err, results[0].Err)
			}
			acked[string(d.Payload)] = true
		}
		if len(acked) < 9 {
			return fmt.Errorf("%d acked", len(acked))
		}
		return nil
	})

	var dead []string
	eventually(t, func() error {
		dead = nil
		for d, err := range a.DeadLetters(t.Context(), "mixed", "") {
			if err != nil {
				return err
			}
			dead = append(dead, d.GetPartition())
		}
		if len(dead) == 0 {
			return errors.New("no dead letter yet")
		}
		return nil
	})
	require.Equal(t, []string{"key-7"}, dead)
}
