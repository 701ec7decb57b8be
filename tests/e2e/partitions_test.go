package e2e

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"postrider.dev/pkg/run/runtest"
	postrider "postrider.dev/sdk"
)

func TestTwoHundredThousandPartitionsOfOneMessageAreDrainedByAnyPartitionPops(t *testing.T) { //nolint:paralleltest // it needs the machine
	f := twoHosts(t)
	total := runtest.Volume(200_000, 20_000)
	pushSingles(t, f.Client(t, 0), "wide", total)

	began := time.Now()
	var mu sync.Mutex
	seen := make(map[string]bool, total)
	var left atomic.Int64
	left.Store(int64(total))
	var consumers errgroup.Group
	for i := range 4 {
		c := f.Client(t, i%2)
		consumers.Go(func() error {
			for left.Load() > 0 {
				lease, err := c.Pop(t.Context(), "wide", postrider.PopOptions{Batch: 1000, Wait: time.Second, Lease: time.Minute})
				if err != nil {
					return err
				}
				if lease == nil {
					continue
				}
				if _, err := lease.Ack(t.Context()); err != nil {
					return err
				}
				mu.Lock()
				for _, d := range lease.Deliveries {
					if seen[d.Partition] {
						mu.Unlock()
						return fmt.Errorf("partition %s came twice", d.Partition)
					}
					seen[d.Partition] = true
				}
				mu.Unlock()
				left.Add(-int64(len(lease.Deliveries)))
			}
			return nil
		})
	}
	require.NoError(t, consumers.Wait())
	took := time.Since(began)

	require.Len(t, seen, total)
	t.Logf("drained in %s", took)
	require.Less(t, took, runtest.Bound(time.Minute))
	for i, h := range f.Hosts {
		require.LessOrEqual(t, metric(t, h, "postrider_dispatcher_view_bytes"), 96.0*(1<<20), "views of host %d", i+1)
	}
}

// pushSingles pushes one message to each of n partitions.
func pushSingles(t *testing.T, c *postrider.Client, queue string, n int) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(8)
	for from := 0; from < n; from += 1000 {
		g.Go(func() error {
			batch := make([]postrider.Message, min(1000, n-from))
			for i := range batch {
				batch[i] = postrider.Message{Partition: fmt.Sprintf("key-%d", from+i), Payload: []byte("x")}
			}
			_, err := c.Push(t.Context(), queue, batch...)
			return err
		})
	}
	require.NoError(t, g.Wait())
}

func TestAStuckPartitionWithFiftyThousandMessagesLeavesTheOthersAlone(t *testing.T) { //nolint:paralleltest // it needs the machine
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	mustPush(t, a, "stuck", "stuck", "first")
	held := mustPop(t, b, "stuck", postrider.PopOptions{Lease: time.Hour})
	require.Equal(t, []string{"first"}, payloads(held))
	before := metric(t, f.Hosts[0], "process_resident_memory_bytes")
	for range runtest.Volume(50, 10) {
		batch := make([]postrider.Message, 1000)
		for i := range batch {
			batch[i] = postrider.Message{Partition: "stuck", Payload: []byte("behind")}
		}
		_, err := a.Push(t.Context(), "stuck", batch...)
		require.NoError(t, err)
	}

	calm, beside := popMedians(t, a, b, "calm", "stuck")

	t.Logf("pop p50 %s calm, %s beside the stuck partition", calm, beside)
	require.Less(t, float64(beside), runtest.Volume(1.5, 15)*float64(calm))
	grown := metric(t, f.Hosts[0], "process_resident_memory_bytes") - before
	require.Less(t, grown, 300.0*(1<<20), "memory grew by %.0f bytes", grown)
}

// popMedians measures pops of two queues in turn, so that both meet the same noise, and returns the median of each.
func popMedians(t *testing.T, a, b *postrider.Client, first, second string) (one, other time.Duration) {
	t.Helper()
	const rounds = 100
	var took [2][]time.Duration
	for i := range rounds {
		took[0] = append(took[0], popOther(t, a, b, first, i))
		took[1] = append(took[1], popOther(t, a, b, second, i))
	}
	slices.Sort(took[0])
	slices.Sort(took[1])
	return took[0][rounds/2], took[1][rounds/2]
}

// popOther pushes a message of a partition that nothing is stuck in on one host and returns how long its pop on the other takes.
func popOther(t *testing.T, a, b *postrider.Client, queue string, i int) time.Duration {
	t.Helper()
	mustPush(t, a, queue, fmt.Sprintf("other-%d", i%10), "x")
	began := time.Now()
	lease := mustPop(t, b, queue, postrider.PopOptions{})
	took := time.Since(began)
	_, err := lease.Ack(t.Context())
	require.NoError(t, err)
	return took
}
