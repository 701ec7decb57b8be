package e2e

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

func TestATransactionOnOneHostSettlesWhatIsLeasedThroughTheOtherAndWakesItsPops(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	mustPush(t, a, "in", "p", "1")
	held := mustPop(t, a, "in", postrider.PopOptions{})
	got := make(chan *postrider.Lease, 1)
	var waiting errgroup.Group
	waiting.Go(func() error {
		lease, err := a.Pop(t.Context(), "out", postrider.PopOptions{Wait: patience})
		got <- lease
		return err
	})

	done, err := b.Transact(t.Context(), (&postrider.Transaction{}).Ack(held).Push("out", message("p", "one")).Push("log", message("p", "moved")))

	require.NoError(t, err)
	require.NoError(t, waiting.Wait())
	require.Equal(t, []string{"one"}, payloads(<-got))
	require.Equal(t, queuev1.AckStatus_ACK_STATUS_SETTLED, done[0].Settled[0].Status)
	require.Equal(t, []string{"moved"}, payloads(mustPop(t, a, "log", postrider.PopOptions{})))
	none, err := a.Pop(t.Context(), "in", postrider.PopOptions{})
	require.NoError(t, err)
	require.Nil(t, none)
}

func TestNothingOfARefusedTransactionIsSeenOnAnyHost(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	mustPush(t, a, "in", "p", "1")
	mustPush(t, a, "in", "q", "2")
	lost := mustPop(t, a, "in", postrider.PopOptions{Partition: "p"})
	_, err := lost.Ack(t.Context())
	require.NoError(t, err)
	held := mustPop(t, a, "in", postrider.PopOptions{Partition: "q"})

	_, err = b.Transact(t.Context(), (&postrider.Transaction{}).Ack(held).Push("out", message("p", "one")).Ack(lost))

	refused := &postrider.TransactionError{}
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "ALREADY_SETTLED", postrider.Code(refused.Operations[2]))
	for _, c := range []*postrider.Client{a, b} {
		none, err := c.Pop(t.Context(), "out", postrider.PopOptions{Group: fmt.Sprintf("%p", c)})
		require.NoError(t, err)
		require.Nil(t, none)
	}
	_, err = held.Ack(t.Context())
	require.NoError(t, err)
}

// handOver moves messages from one queue to the other until it is told to stop: what it may have failed to do comes again when its lease ends.
func handOver(ctx context.Context, c *postrider.Client, moved func(ids []string)) error {
	for ctx.Err() == nil {
		lease, err := c.Pop(ctx, "in", postrider.PopOptions{Batch: 5, Lease: 2 * time.Second, Wait: time.Second})
		if err != nil || lease == nil {
			continue
		}
		tx := (&postrider.Transaction{}).Ack(lease)
		var ids []string
		for _, d := range lease.Deliveries {
			ids = append(ids, string(d.Payload))
			tx.Push("out", postrider.Message{Partition: d.Partition, Payload: d.Payload})
		}
		if _, err := c.Transact(ctx, tx); err == nil {
			moved(ids)
		}
	}
	return nil
}

// Each input is acked once, and has exactly one output: no crash is between the two.
func TestKillingADispatcherNeitherLosesNorDoublesWhatTransactionsHandOver(t *testing.T) {
	t.Parallel()
	p := fleet.StartProcesses(t, &binaries, 2)
	const total = 1000
	producer := p.Client(t, orderFrom(1)...)
	for i := 0; i < total; i += 100 {
		var batch []postrider.Message
		for n := i; n < i+100; n++ {
			batch = append(batch, message("p"+strconv.Itoa(n%20), strconv.Itoa(n)))
		}
		_, err := producer.Push(t.Context(), "in", batch...)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	working, stop := context.WithCancel(ctx)
	defer stop()
	var mu sync.Mutex
	told := map[string]int{}
	third, all := make(chan struct{}), make(chan struct{})
	var workers errgroup.Group
	for i := range 6 {
		c := p.Client(t, orderFrom(i%2)...)
		workers.Go(func() error {
			return handOver(working, c, func(ids []string) {
				mu.Lock()
				defer mu.Unlock()
				before := len(told)
				for _, id := range ids {
					told[id]++
				}
				if before < total/3 && len(told) >= total/3 {
					close(third)
				}
				if before < total && len(told) == total {
					close(all)
				}
			})
		})
	}

	d := p.Hosts[0].Dispatcher
	for i, at := range []chan struct{}{third, all} {
		select {
		case <-at:
		case <-ctx.Done():
			t.Fatalf("only %d are handed over", len(told))
		}
		if i == 0 {
			d.Kill()
			d.Start(t)
			d.AwaitReady(t)
		}
	}
	stop()
	require.NoError(t, workers.Wait())

	outputs := map[string]int{}
	for n := 0; n < total; {
		lease := mustPop(t, producer, "out", postrider.PopOptions{Batch: 1000})
		for _, id := range payloads(lease) {
			outputs[id]++
			n++
		}
		_, err := lease.Ack(t.Context())
		require.NoError(t, err)
	}
	more, err := producer.Pop(t.Context(), "out", postrider.PopOptions{})
	require.NoError(t, err)
	require.Nil(t, more, "an output too many")
	require.Len(t, outputs, total)
	for id, n := range outputs {
		require.Equal(t, 1, n, "input %s", id)
		require.Equal(t, 1, told[id], "input %s", id)
	}
	left, err := producer.Pop(t.Context(), "in", postrider.PopOptions{})
	require.NoError(t, err)
	require.Nil(t, left)
}
