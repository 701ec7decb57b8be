package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/hammer"
)

func TestOrderPerPartitionHoldsUnderEightProducersAndEightConsumersOnTwoHosts(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	r := hammer.NewRecorder()
	const each = 500
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	consuming, stop := context.WithCancel(ctx)
	var producers, consumers errgroup.Group
	for i := range 8 {
		client := f.Client(t, i%2)
		producers.Go(func() error {
			return hammer.Produce{
				Queue: "orders", Publisher: fmt.Sprintf("p%d", i), Partitions: partitions(16), Batch: 1 + i, Count: each,
			}.Run(ctx, r, client)
		})
		consumer := f.Client(t, (i+1)%2)
		consumers.Go(func() error {
			return hammer.Consume{Queue: "orders", Group: "g", Batch: 20}.Run(consuming, r, consumer)
		})
	}

	require.NoError(t, producers.Wait())
	err := r.AwaitAcked(ctx, "orders", "g", 8*each)
	stop()
	require.NoError(t, errors.Join(err, consumers.Wait()))

	require.Equal(t, 8*each, r.Pushed("orders"))
	noViolation(t, r)
}

func TestSharedModeSettlesInAnyOrderInsideOnePartition(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	for i := range 4 {
		mustPush(t, a, "jobs", "one", strconv.Itoa(i))
	}
	shared := postrider.PopOptions{Batch: 1, Mode: queuev1.GroupMode_GROUP_MODE_SHARED}

	first, second := mustPop(t, a, "jobs", shared), mustPop(t, b, "jobs", shared)
	third := mustPop(t, b, "jobs", shared)
	require.Equal(t, []string{"0", "1", "2"}, append(append(payloads(first), payloads(second)...), payloads(third)...))
	for _, l := range []*postrider.Lease{third, second} {
		results, err := l.Ack(t.Context())
		require.NoError(t, err)
		require.Empty(t, results)
	}
	require.NoError(t, first.Release(t.Context()))

	again := mustPop(t, b, "jobs", postrider.PopOptions{Batch: 10, Mode: queuev1.GroupMode_GROUP_MODE_SHARED})
	require.ElementsMatch(t, []string{"0", "3"}, payloads(again), "what was released comes back, what was acked does not")
}

func TestOneFailingMessageHoldsOnlyItsOwnPartition(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Configure(t.Context(), "work", &queuev1.QueueOptions{MaxAttempts: new(int32(1000))})
	require.NoError(t, err)
	mustPush(t, a, "work", "bad", "bad-0")
	mustPush(t, a, "work", "bad", "bad-1")
	for i := range 20 {
		mustPush(t, a, "work", fmt.Sprintf("good-%d", i%4), fmt.Sprint("good-", i))
	}

	var mu sync.Mutex
	seen := map[string]int{}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = b.Consume(ctx, "work", func(_ context.Context, d *postrider.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		seen[string(d.Payload)]++
		if len(seen) >= 21 && seen["bad-0"] > 3 {
			cancel()
		}
		if d.Partition == "bad" {
			return postrider.RetryAfter(errors.New("always"), 10*time.Millisecond)
		}
		return nil
	}, postrider.ConsumeOptions{PopOptions: postrider.PopOptions{Batch: 4}, Concurrency: 2, OnError: func(err error) { t.Log(err) }})
	require.NoError(t, err)

	mu.Lock()
	defer mu.Unlock()
	require.Zero(t, seen["bad-1"], "a message overtook the failing one before it")
	require.Len(t, seen, 21, "every good message was handled")
}

func TestRacingPushesWithOneIdempotencyKeyYieldOneMessage(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	var racers errgroup.Group
	ids, duplicates := make([]string, 16), make([]bool, 16)
	for i := range ids {
		c := f.Client(t, i%2)
		racers.Go(func() error {
			results, err := c.Push(t.Context(), "payments", postrider.Message{Partition: "p", Payload: []byte("pay"), IdempotencyKey: "once"})
			if err != nil {
				return err
			}
			ids[i], duplicates[i] = results[0].MessageID, results[0].Duplicate
			return results[0].Err
		})
	}
	require.NoError(t, racers.Wait())

	winners := 0
	for i := range ids {
		require.Equal(t, ids[0], ids[i], "every racer learns the one message's id")
		if !duplicates[i] {
			winners++
		}
	}
	require.Equal(t, 1, winners)
	lease := mustPop(t, f.Client(t, 1), "payments", postrider.PopOptions{Batch: 10})
	require.Equal(t, []string{"pay"}, payloads(lease))
}

func TestAnIdempotencyKeyWithAnotherBodyIsAnErrorOfThatItemAlone(t *testing.T) {
	t.Parallel()
	c := twoHosts(t).Client(t)
	push := func(first, second string) []postrider.PushResult {
		results, err := c.Push(t.Context(), "payments",
			postrider.Message{Partition: "p", Payload: []byte(first), IdempotencyKey: "k"}, postrider.Message{Partition: "p", Payload: []byte(second)})
		require.NoError(t, err)
		return results
	}
	require.NoError(t, push("10 EUR", "x")[0].Err)

	again := push("99 EUR", "y")

	require.Equal(t, "IDEMPOTENCY_KEY_REUSED", postrider.Code(again[0].Err))
	require.NoError(t, again[1].Err)
	lease := mustPop(t, c, "payments", postrider.PopOptions{Batch: 10})
	require.Equal(t, []string{"10 EUR", "x", "y"}, payloads(lease))
}
