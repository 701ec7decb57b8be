package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"postrider.dev/pkg/run/runtest"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
	"postrider.dev/tests/hammer"
)

func TestAPopOnOneHostTakesTheHighestLaneThatWasPushedThroughEither(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Configure(t.Context(), "mail", &queuev1.QueueOptions{Lanes: new(int32(3))})
	require.NoError(t, err)
	push := func(c *postrider.Client, priority int32, payload string) {
		results, err := c.Push(t.Context(), "mail", postrider.Message{Partition: "p", Payload: []byte(payload), Priority: priority})
		require.NoError(t, err)
		require.NoError(t, results[0].Err)
	}
	push(a, 0, "low")
	push(b, 1, "mid")
	push(a, 2, "high")
	push(b, 0, "low too")

	var all *postrider.Lease
	runtest.Eventually(t, func() error { // what went through the other host is known here a moment later
		all, err = b.Pop(t.Context(), "mail", postrider.PopOptions{Batch: 9, Wait: time.Second})
		require.NoError(t, err)
		if n := len(all.Deliveries); n < 4 {
			return errors.Join(fmt.Errorf("%d of 4 messages", n), all.Release(t.Context()))
		}
		return nil
	})
	require.NoError(t, all.Release(t.Context()))
	first, err := b.Pop(t.Context(), "mail", postrider.PopOptions{Wait: time.Second})
	require.NoError(t, err)
	require.NoError(t, first.Release(t.Context()))
	named, err := b.Pop(t.Context(), "mail", postrider.PopOptions{Partition: "p", Batch: 3, Wait: time.Second})
	require.NoError(t, err)

	require.Equal(t, []string{"high", "mid", "low", "low too"}, contents(all))
	require.Equal(t, []string{"high"}, contents(first))
	require.Equal(t, []string{"high", "mid", "low"}, contents(named))
	results, err := b.Push(t.Context(), "mail", postrider.Message{Payload: []byte("x"), Priority: 3})
	require.NoError(t, err)
	require.ErrorContains(t, results[0].Err, "LANE_UNKNOWN")
	queue, err := b.Queue(t.Context(), "mail")
	require.NoError(t, err)
	require.Len(t, queue.GetShards(), 3)
	require.EqualValues(t, 2, queue.GetShards()[2].GetPriority())
	require.EqualValues(t, 1, queue.GetShards()[2].GetHead())
}

func contents(l *postrider.Lease) []string {
	var out []string
	for _, d := range l.Deliveries {
		out = append(out, string(d.Payload))
	}
	return out
}

func TestASubscriptionHearsOfEveryLane(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Configure(t.Context(), "mail", &queuev1.QueueOptions{Lanes: new(int32(3))})
	require.NoError(t, err)
	for _, priority := range []int32{2, 0, 1} {
		_, err := a.Push(t.Context(), "mail", postrider.Message{Partition: "p", Payload: []byte("x"), Priority: priority})
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	heard := map[int32]bool{}

	err = b.Subscribe(ctx, "mail", func(_ context.Context, m *postrider.SubscribedMessage) error {
		heard[m.Priority] = true
		if len(heard) == 3 {
			cancel()
		}
		return nil
	}, postrider.SubscribeOptions{From: "earliest"})

	require.NoError(t, err)
	require.Equal(t, map[int32]bool{0: true, 1: true, 2: true}, heard)
}

func TestKillingADispatcherKeepsTheOrderOfEachPartitionAndLane(t *testing.T) {
	t.Parallel()
	p := fleet.StartProcesses(t, &binaries, 2)
	_, err := p.Client(t).Configure(t.Context(), "lanes", &queuev1.QueueOptions{Lanes: new(int32(3)), Shards: new(int32(2))})
	require.NoError(t, err)
	const publishers, each = 3, 600
	r := hammer.NewRecorder()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	consuming, stop := context.WithCancel(ctx)
	var producers, consumers errgroup.Group
	for i := range publishers {
		producer, consumer := p.Client(t, orderFrom(i%2)...), p.Client(t, orderFrom((i+1)%2)...)
		producers.Go(func() error {
			return hammer.Produce{
				Queue: "lanes", Publisher: strconv.Itoa(i), Partitions: partitions(8), Priorities: []int32{0, 2, 1}, Batch: 6, Count: each, Keyed: true,
			}.Run(ctx, r, producer)
		})
		consumers.Go(func() error {
			return hammer.Consume{Queue: "lanes", Group: "g", Batch: 10, Lease: 2 * time.Second}.Run(consuming, r, consumer)
		})
	}

	faulted := r.AwaitAcked(ctx, "lanes", "g", publishers*each/3)
	d := p.Hosts[0].Dispatcher
	d.Kill()
	d.Start(t)
	d.AwaitReady(t)
	err = errors.Join(faulted, producers.Wait(), r.AwaitDrained(ctx, "lanes", "g"))
	stop()

	require.NoError(t, errors.Join(err, consumers.Wait()))
	require.Equal(t, publishers*each, r.Pushed("lanes"))
	noViolation(t, r)
}
