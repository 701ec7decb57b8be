package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"postrider.dev/pkg/pg"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

func TestKeysAreRotatedUnderLoadFromTwoHostsWhileOneIsKilledAndNothingIsLostOrReordered(t *testing.T) {
	t.Parallel()
	p := fleet.StartProcesses(t, &binaries, 2, "POSTRIDER_DISPATCHER_ENCRYPTION_KEYS="+masterKey(1))
	a, b := p.Client(t, 0), p.Client(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	_, err := a.Configure(ctx, "q", &queuev1.QueueOptions{Encryption: new(true)})
	require.NoError(t, err)
	ledger, stop := newOutageLedger(), make(chan struct{})
	var publishers errgroup.Group
	for host, c := range []*postrider.Client{a, b} {
		publishers.Go(func() error { return ledger.publish(ctx, c, host, fmt.Sprintf("p%d", host), stop) })
	}
	ledger.await(t, func(accepted int, _ [2]int) bool { return accepted > 30 })

	var rotations errgroup.Group
	for _, c := range []*postrider.Client{a, b} {
		rotations.Go(func() error {
			for range 4 {
				if _, err := c.RotateKey(ctx, "q"); err != nil {
					return err
				}
			}
			return nil
		})
	}
	d := p.Hosts[0].Dispatcher
	d.Kill()
	d.Start(t)
	d.AwaitReady(t)
	require.NoError(t, rotations.Wait())
	during, _ := ledger.count()
	ledger.await(t, func(accepted int, _ [2]int) bool { return accepted > during+60 })
	close(stop)
	require.NoError(t, publishers.Wait())

	ledger.consumed(t, b, true)
	conn, err := pg.Connect(ctx, p.Postgres.DSN("postgres"), pg.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(ctx))) }()
	var keys, plain int
	require.NoError(t, conn.QueryRow(ctx, `SELECT count(DISTINCT key_id), count(*) FILTER (WHERE key_id = 0) FROM dispatcher.segments g
		JOIN dispatcher.shards s ON s.id = g.shard_id JOIN dispatcher.queues q ON q.id = s.queue_id WHERE q.name = 'q'`).Scan(&keys, &plain))
	require.GreaterOrEqual(t, keys, 2)
	require.Zero(t, plain)
}

func TestAMasterKeyIsReplacedHostByHostAndThenTheOldOneIsNotNeeded(t *testing.T) {
	t.Parallel()
	first, second := masterKey(1), "n"+masterKey(2)[1:]
	f := fleet.Start(t, withKeys(fleet.Options{Hosts: 1}, first))
	a := f.Client(t, 0)
	_, err := a.Configure(t.Context(), "zebra", &queuev1.QueueOptions{Encryption: new(true)})
	require.NoError(t, err)
	mustPush(t, a, "zebra", "p", "1")
	next := f.StartHost(t, withKeys(fleet.Options{}, second+","+first))
	f.Hosts[0].Stop()
	mustPush(t, f.Client(t, 1), "zebra", "p", "2")
	db := f.DB.Open(pg.Options{})
	eventually(t, func() error { // its loop has done it
		var left int
		if err := db.QueryRow(t.Context(), "SELECT count(*) FROM dispatcher.queue_keys WHERE master_id <> 'n'").Scan(&left); err != nil || left == 0 {
			return err
		}
		return fmt.Errorf("%d keys need the old master key", left)
	})
	next.Stop()

	f.StartHost(t, withKeys(fleet.Options{}, second))
	last := f.Client(t, 2)
	mustPush(t, last, "zebra", "p", "3")
	var got []string
	for len(got) < 3 {
		lease := mustPop(t, last, "zebra", postrider.PopOptions{Batch: 10, Wait: time.Second})
		got = append(got, payloads(lease)...)
		_, err := lease.Ack(t.Context())
		require.NoError(t, err)
	}
	require.Equal(t, []string{"1", "2", "3"}, got)
}
