package store_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestSubscribersAreCountedOverAllDispatchersUntilTheyExpire(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("acme", "q")
	one, two := uuid.New(), uuid.New()
	count := func() int64 {
		t.Helper()
		stats, err := c.control.QueueStats(t.Context(), []int64{q.ID})
		require.NoError(t, err)
		return stats[q.ID].Subscribers
	}
	put := func(node uuid.UUID, counts map[int64]int64, ttl time.Duration) {
		t.Helper()
		require.NoError(t, c.control.PutSubscribers(t.Context(), node, counts, ttl))
	}

	put(one, map[int64]int64{q.ID: 3, q.ID + 1: 9}, time.Hour)
	put(two, map[int64]int64{q.ID: 4}, time.Hour)
	require.EqualValues(t, 7, count())
	put(one, map[int64]int64{q.ID + 1: 9}, time.Hour)
	require.EqualValues(t, 4, count(), "the first serves it no more")
	put(two, map[int64]int64{q.ID: 4}, -time.Second)
	require.Zero(t, count(), "it was not renewed in time")
	require.NoError(t, c.control.ExpireSubscribers(t.Context()))
	put(one, nil, time.Hour)
	require.Zero(t, count())
}
