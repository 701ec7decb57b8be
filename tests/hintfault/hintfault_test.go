package hintfault

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
)

func hint(n int) *meshv1.Hint {
	return &meshv1.Hint{Kind: &meshv1.Hint_RegistryChanged{RegistryChanged: &meshv1.RegistryChanged{Registry: "r", Key: strconv.Itoa(n)}}}
}

func TestDroppedMeansAll(t *testing.T) {
	t.Parallel()
	arrived := 0
	seam, err := Seam(Drop)
	require.NoError(t, err)

	through := seam(func(hints []*meshv1.Hint) { arrived += len(hints) })
	for n := range 100 {
		through([]*meshv1.Hint{hint(n)})
	}

	require.Zero(t, arrived)
}

func TestMangledHintsAreHalfLostAndTheRestComesTwiceAndInAnotherOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const sent = 1000
		var mu sync.Mutex // guards order and times
		var order []int
		times := map[int]int{}
		seam, err := Seam(Mangle)
		require.NoError(t, err)
		through := seam(func(hints []*meshv1.Hint) {
			mu.Lock()
			defer mu.Unlock()
			for _, h := range hints {
				n, err := strconv.Atoi(h.GetRegistryChanged().GetKey())
				require.NoError(t, err)
				order = append(order, n)
				times[n]++
			}
		})

		for n := range sent {
			through([]*meshv1.Hint{hint(n)})
		}
		<-time.After(time.Second) // the bubble's time: what is held comes out
		synctest.Wait()

		mu.Lock()
		defer mu.Unlock()
		require.InDelta(t, sent/2, len(times), sent/8)
		require.False(t, slices.IsSorted(order))
		for n, got := range times {
			require.Equal(t, 2, got, "hint %d", n)
		}
	})
}

func TestAHintThatNothingFollowsComesAllTheSame(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var came atomic.Int64
		m := &mangler{publish: func(h []*meshv1.Hint) { came.Add(int64(len(h))) }, lost: func() bool { return false }}

		m.take([]*meshv1.Hint{hint(1)})
		require.Zero(t, came.Load())
		<-time.After(2 * heldFor) // the bubble's time
		synctest.Wait()

		require.Equal(t, int64(2), came.Load())
	})
}

func TestAFaultThatNobodyKnowsIsAnError(t *testing.T) {
	t.Parallel()
	_, err := Seam("dorp")
	require.ErrorContains(t, err, "dorp")
}
