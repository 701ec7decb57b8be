package catalog_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/store"
)

func TestAQueueIsKnownForTenMinutesAfterItWasReadLastAndNoLonger(t *testing.T) {
	t.Parallel()
	c, r, clk := bench(t)
	read, err := c.Queue(t.Context(), "a", "q", true)
	require.NoError(t, err)
	clk.Advance(2 * time.Minute)
	_, err = c.Queue(t.Context(), "a", "q", true) // and so it counts from here
	require.NoError(t, err)
	r.mu.Lock()
	r.broken = errors.New("away")
	r.mu.Unlock()

	for range 4 {
		clk.Advance(2 * time.Minute)
		_, err = c.Queue(t.Context(), "a", "q", true)
		require.Error(t, err)
		known, ok := c.LastKnown("a", "q")
		require.True(t, ok)
		require.Equal(t, read.ID, known.ID)
	}
	_, other := c.LastKnown("b", "q")
	_, never := c.LastKnown("a", "never read")
	clk.Advance(2*time.Minute + time.Second)
	_, ok := c.LastKnown("a", "q")

	require.False(t, ok, "ten minutes are over")
	require.False(t, other, "another tenant's")
	require.False(t, never)
}

func TestAQueueThatWasDeletedIsNotKnownAnyMore(t *testing.T) {
	t.Parallel()
	c, r, clk := bench(t)
	_, err := c.Queue(t.Context(), "a", "q", true)
	require.NoError(t, err)
	r.mu.Lock()
	delete(r.queues, r.key("a", "q"))
	r.mu.Unlock()
	clk.Advance(2 * time.Minute)
	_, err = c.Queue(t.Context(), "a", "q", false)
	require.ErrorIs(t, err, store.ErrQueueNotFound)

	_, ok := c.LastKnown("a", "q")

	require.False(t, ok)
}
