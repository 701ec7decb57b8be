package placement_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/services/dispatcher/internal/domain/placement"
)

func anyLayout(t *rapid.T) placement.Layout {
	lanes := rapid.IntRange(1, 10).Draw(t, "lanes")
	return placement.Of(lanes, lanes*rapid.IntRange(1, 64/lanes).Draw(t, "shards"))
}

// TestAQueueOfOneLaneIsPlacedAsBeforeThereWereLanes: what was pushed then must be found, and keep its order with what comes now.
func TestAQueueOfOneLaneIsPlacedAsBeforeThereWereLanes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		shards, hash := rapid.IntRange(1, 64).Draw(t, "shards"), rapid.Uint64().Draw(t, "hash")
		require.Equal(t, placement.Shard(hash, shards), placement.Of(1, shards).Shard(0, hash))
		require.Zero(t, placement.Of(1, shards).Priority(shards-1))
	})
}

func TestEachLaneHasItsOwnShardForAPartition(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l, hash := anyLayout(t), rapid.Uint64().Draw(t, "hash")
		homes := l.Homes(hash)
		require.Len(t, homes, l.Lanes)
		for priority, shard := range homes {
			require.Equal(t, priority, l.Priority(shard))
			require.Equal(t, shard, l.Shard(priority, hash))
			require.Less(t, shard, l.Turns())
			require.Equal(t, placement.Shard(hash, l.Shards), shard%l.Shards, "a partition has the same place in every lane")
		}
		require.Equal(t, homes[l.Lanes-1], l.Shard(l.Lanes+5, hash), "beyond the highest lane is the highest")
	})
}

func TestALookAtAllShardsGoesFromTheHighestLaneDownAndLeavesNoneOut(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l, first := anyLayout(t), rapid.IntRange(0, 1<<32-1).Draw(t, "first")
		var order []int
		for n := range l.Turns() {
			order = append(order, l.Turn(first, n))
		}
		require.True(t, slices.IsSortedFunc(order, func(a, b int) int { return l.Priority(b) - l.Priority(a) }), "%v", order)
		require.Equal(t, first%l.Shards, order[0]%l.Shards)
		slices.Sort(order)
		require.Len(t, slices.Compact(order), l.Turns())
		require.Equal(t, []int{0, l.Turns() - 1}, []int{order[0], order[len(order)-1]})
	})
}

func TestALookAtOnePartitionGoesFromTheHighestLaneDown(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l, hash := anyLayout(t), rapid.Uint64().Draw(t, "hash")
		var order []int
		for n := range l.Lanes {
			order = append(order, l.NamedTurn(hash, n))
		}
		slices.Reverse(order)
		require.Equal(t, l.Homes(hash), order)
	})
}
