package chaos

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestASeedDecidesThePlan(t *testing.T) {
	t.Parallel()

	first := Plan(7, time.Minute, 2)

	require.Equal(t, first, Plan(7, time.Minute, 2))
	require.NotEqual(t, first, Plan(8, time.Minute, 2))
}

func TestTwoMinutesHaveEnoughFaultsOfEveryKind(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		seen := map[Kind]int{}
		plan := Plan(seed, 2*time.Minute, 2)
		for i, f := range plan {
			seen[f.Kind]++
			require.Less(t, f.At, 2*time.Minute)
			require.Contains(t, []int{0, 1}, f.Host)
			require.GreaterOrEqual(t, f.For, kinds()[f.Kind].least)
			require.LessOrEqual(t, f.For, kinds()[f.Kind].most)
			if i > 0 {
				require.Greater(t, f.At, plan[i-1].At)
			}
		}
		require.GreaterOrEqual(t, len(plan), leastFaults, "seed %d", seed)
		require.Len(t, seen, len(order()), "seed %d", seed)
	}
}

func TestEveryKindHasASpanAndAPlaceInTheOrder(t *testing.T) {
	t.Parallel()

	require.Len(t, kinds(), len(order()))
	for _, k := range order() {
		require.Contains(t, kinds(), k)
	}
}
