package engine_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/run/runtest"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// pushMany pushes count messages of the partitions named by name, in full requests.
func (n *node) pushMany(queue string, count int, name func(i int) string) {
	n.t.Helper()
	const request = 1000
	for from := 0; from < count; from += request {
		items := make([]*queuev1.PushItem, 0, request)
		for i := from; i < min(from+request, count); i++ {
			items = append(items, item(name(i), strconv.Itoa(i)))
		}
		n.push(queue, items...)
	}
}

// popOther pushes a message of a partition that nothing is stuck in, pops it, and returns how long the pop took.
func (n *node) popOther(queue string) time.Duration {
	n.t.Helper()
	clk := clock.Real{}
	n.push(queue, item("other", "x"))
	began := clk.Now()
	resp := n.pop(&queuev1.PopRequest{Queue: queue, Wait: seconds(20)})
	took := clk.Since(began)
	require.Equal(n.t, "other", resp.GetDeliveries()[0].GetPartition())
	n.ackAll(queue, resp.GetLease())
	return took
}

// popsOther measures pops of two queues in turn, so that both meet the same noise, and returns the median of each.
func (n *node) popsOther(calm, stuck string) (calmly, beside time.Duration) {
	n.t.Helper()
	const rounds = 100
	n.popOther(calm)
	n.popOther(stuck)
	took := [2][]time.Duration{}
	for range rounds {
		took[0] = append(took[0], n.popOther(calm))
		took[1] = append(took[1], n.popOther(stuck))
	}
	slices.Sort(took[0])
	slices.Sort(took[1])
	return took[0][rounds/2], took[1][rounds/2]
}

func TestAStuckPartitionLeavesOthersFastAndMemoryBounded(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.push("stuck", item("k", "first"))
	held := n.pop(&queuev1.PopRequest{Queue: "stuck", Lease: seconds(3600)})
	n.pushMany("stuck", 50_000, func(int) string { return "k" })

	calm, stuck := n.popsOther("calm", "stuck")
	n.stop()
	cold := newNode(t, url, nodeOptions{})
	calmAgain, afterColdStart := cold.popsOther("calm", "stuck")

	t.Logf("pop p50: calm %v, beside a stuck partition %v; after a cold start %v, %v; views %v bytes",
		calm, stuck, calmAgain, afterColdStart, cold.metric("view_bytes"))
	atMost := runtest.Volume(1.5, 15) // times the calm median
	require.Less(t, float64(stuck), atMost*float64(calm))
	require.Less(t, float64(afterColdStart), atMost*float64(calmAgain))
	require.Less(t, cold.metric("view_bytes"), 4.0*(1<<20))
	require.Equal(t, []string{"first"}, payloads(held))

	cold.ackAll("stuck", held.GetLease())
	next := cold.pop(&queuev1.PopRequest{Queue: "stuck", Batch: 3, Wait: seconds(20)})
	require.Equal(t, []string{"0", "1", "2"}, payloads(next))
}

func TestAStuckPartitionIsDrainedInOrderOnceItIsFree(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	n.push("q", item("k", "first"))
	held := n.pop(&queuev1.PopRequest{Queue: "q", Lease: seconds(3600)})
	const behind = 20_000
	n.pushMany("q", behind, func(int) string { return "k" })
	n.push("q", item("other", "x"))
	other := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 100})
	require.Equal(t, []string{"x"}, payloads(other))
	n.ackAll("q", held.GetLease())

	var settle *queuev1.AckRequest
	for next := 0; next < behind; {
		resp := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 1000, Wait: seconds(20), Settle: settle})
		require.NotEmpty(t, resp.GetLease(), "at %d", next)
		for _, d := range resp.GetDeliveries() {
			require.Equal(t, strconv.Itoa(next), string(d.GetPayload()))
			next++
		}
		settle = &queuev1.AckRequest{Lease: resp.GetLease(), AckRest: true}
	}
}

func TestTwoHundredThousandPartitionsOfOneMessageAreDrained(t *testing.T) {
	t.Parallel()
	n := newNode(t, database(t), nodeOptions{})
	count := runtest.Volume(200_000, 20_000)
	n.pushMany("q", count, func(i int) string { return fmt.Sprintf("p%d", i) })
	clk := clock.Real{}
	began := clk.Now()

	var settle *queuev1.AckRequest
	seen := make(map[string]bool, count)
	largest := 0.0
	for len(seen) < count {
		resp := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 1000, Wait: seconds(20), Settle: settle})
		require.NotEmpty(t, resp.GetLease(), "after %d", len(seen))
		for _, d := range resp.GetDeliveries() {
			require.False(t, seen[d.GetPartition()], "partition %s came twice", d.GetPartition())
			seen[d.GetPartition()] = true
		}
		settle = &queuev1.AckRequest{Lease: resp.GetLease(), AckRest: true}
		largest = max(largest, n.metric("view_bytes"))
	}

	t.Logf("drained in %v, largest view %v bytes", clk.Since(began), largest)
	require.Less(t, clk.Since(began), runtest.Bound(time.Minute))
	require.Less(t, largest, 16.0*(1<<20))
}

func TestACrasherTakesNoNeighbourAlong(t *testing.T) {
	t.Parallel()
	url := database(t)
	n := newNode(t, url, nodeOptions{})
	n.set(url, `{"max_attempts": 1, "backoff": "1ms", "backoff_max": "1ms"}`)
	const crasher = "p3"
	for i := range 10 {
		n.push("q", item(fmt.Sprintf("p%d", i), strconv.Itoa(i)))
	}

	settled := map[string]bool{}
	for round := 0; len(settled) < 9; round++ {
		require.Less(t, round, 50)
		resp := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10, Lease: seconds(1), Wait: seconds(5)})
		if slices.ContainsFunc(resp.GetDeliveries(), func(d *queuev1.Delivery) bool { return d.GetPartition() == crasher }) {
			continue // the process dies with all it holds: the lease runs out
		}
		for _, d := range resp.GetDeliveries() {
			settled[d.GetPartition()] = true
		}
		if resp.GetLease() != "" {
			n.ackAll("q", resp.GetLease())
		}
	}
	sweeping := n.sweeper()

	eventually(t, func() error {
		sweeping()
		letters, err := n.control.ListDeadLetters(t.Context(), ten, "q", letterFilter())
		if err != nil {
			return err
		}
		return wantf(len(letters) == 1, "%d dead letters", len(letters))
	})
	letters, err := n.control.ListDeadLetters(t.Context(), ten, "q", letterFilter())
	require.NoError(t, err)
	require.Equal(t, crasher, letters[0].Partition)
	require.Equal(t, "expired", letters[0].Reason)
	require.NotContains(t, settled, crasher)
}

// sweeper returns what the reaper does in one round.
func (n *node) sweeper() func() {
	return func() {
		found, err := n.store.ExpiredLeases(n.t.Context(), 100)
		require.NoError(n.t, err)
		for _, x := range found {
			require.NoError(n.t, n.Reclaim(n.t.Context(), x.GroupShard))
		}
	}
}
