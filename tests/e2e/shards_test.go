package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/hammer"
)

func TestAQueueOfFourShardsKeepsOrderPerPartitionAndIsPoppedAcrossShards(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a := f.Client(t, 0)
	_, err := a.Configure(t.Context(), "wide", &queuev1.QueueOptions{Shards: new(int32(4))})
	require.NoError(t, err)
	r := hammer.NewRecorder()
	const each = 250
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	consuming, stop := context.WithCancel(ctx)
	var producers, consumers errgroup.Group
	for i := range 4 {
		producer, consumer := f.Client(t, i%2), f.Client(t, (i+1)%2)
		producers.Go(func() error {
			return hammer.Produce{Queue: "wide", Publisher: fmt.Sprintf("p%d", i), Partitions: partitions(24), Batch: 5, Count: each}.Run(ctx, r, producer)
		})
		consumers.Go(func() error { return hammer.Consume{Queue: "wide", Group: "g", Batch: 20}.Run(consuming, r, consumer) })
	}

	require.NoError(t, producers.Wait())
	err = r.AwaitAcked(ctx, "wide", "g", 4*each)
	stop()
	require.NoError(t, errors.Join(err, consumers.Wait()))

	noViolation(t, r)
	queue, err := a.Queue(t.Context(), "wide")
	require.NoError(t, err)
	require.Len(t, queue.GetShards(), 4)
	for _, s := range queue.GetShards() {
		require.Positive(t, s.GetHead(), "24 partitions leave no shard of four empty")
	}
	_, err = a.Configure(t.Context(), "wide", &queuev1.QueueOptions{Shards: new(int32(8))})
	require.Error(t, err, "shards are fixed when the queue is made")
}

func TestABadItemHarmsNeitherItsBatchNorOtherCallersBatches(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	const callers, rounds = 8, 20
	mustPushKeyed(t, f.Client(t, 0), "mixed", "shared")
	var all errgroup.Group
	for i := range callers {
		c := f.Client(t, i%2)
		all.Go(func() error {
			for round := range rounds {
				batch := []postrider.Message{good(i, round, 0), good(i, round, 1), good(i, round, 2)}
				bad := -1
				if i%2 == 0 { // these callers' neighbours, in the same group commit, push nothing bad
					bad = round % 3
					batch[bad] = []postrider.Message{
						{Partition: "nul\x00", Payload: []byte("x")},
						{Partition: "p", Payload: []byte("{"), ContentType: "application/json"},
						{Partition: "p", Payload: []byte("other body"), IdempotencyKey: "shared"},
					}[bad]
				}
				results, err := c.Push(t.Context(), "mixed", batch...)
				if err != nil {
					return err
				}
				for n, r := range results {
					if (r.Err != nil) != (n == bad) {
						return fmt.Errorf("caller %d, round %d, item %d: %w", i, round, n, r.Err)
					}
				}
			}
			return nil
		})
	}
	require.NoError(t, all.Wait())

	queue, err := f.Client(t).Queue(t.Context(), "mixed")
	require.NoError(t, err)
	require.EqualValues(t, 1+callers*rounds*3-callers/2*rounds, queue.GetShards()[0].GetHead())
}

func good(caller, round, n int) postrider.Message {
	return postrider.Message{Partition: fmt.Sprint("p", caller), Payload: fmt.Appendf(nil, "%d/%d/%d", caller, round, n)}
}

// mustPushKeyed takes the idempotency key in partition p.
func mustPushKeyed(t *testing.T, c *postrider.Client, queue, key string) {
	t.Helper()
	results, err := c.Push(t.Context(), queue, postrider.Message{Partition: "p", Payload: []byte("first body"), IdempotencyKey: key})
	require.NoError(t, err)
	require.NoError(t, results[0].Err)
}
