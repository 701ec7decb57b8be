package placement_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/placement"
)

// TestPlacementNeverMoves holds the function fixed: a partition that moved would lose its order.
func TestPlacementNeverMoves(t *testing.T) {
	t.Parallel()
	require.Equal(t, uint64(0xef46db3751d8e999), placement.Hash(""))
	require.Equal(t, uint64(0xd24ec4f1a98c6e5b), placement.Hash("a"))
	require.Equal(t, 27, placement.Shard(placement.Hash("a"), 64))
	require.Equal(t, 0, placement.Shard(placement.Hash("a"), 1))
}

func TestShardsAreFilledEvenly(t *testing.T) {
	t.Parallel()
	counts := make([]int, 16)
	for i := range 16_000 {
		counts[placement.Shard(placement.Hash(fmt.Sprintf("customer-%d", i)), len(counts))]++
	}
	for shard, n := range counts {
		require.InDelta(t, 1000, n, 150, "shard %d", shard)
	}
}
