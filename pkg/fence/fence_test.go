package fence_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/pkg/fence"
)

func TestOnlyAGreaterEpochFences(t *testing.T) {
	t.Parallel()
	require.False(t, fence.Epoch(0).Held())
	require.True(t, fence.Epoch(1).Held())
	require.True(t, fence.Epoch(2).Fences(1))
	require.False(t, fence.Epoch(2).Fences(2))
	require.False(t, fence.Epoch(1).Fences(2))
}

// TestTrustEndsBeforeTheGrantDoes: whenever the grant happened during the attempt, and however late the answer came, trust ends at least a margin before it.
func TestTrustEndsBeforeTheGrantDoes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		ttl := time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "ttl"))
		w := fence.Window{TTL: ttl, Margin: time.Duration(rapid.Int64Range(0, int64(ttl)-1).Draw(t, "margin"))}
		start := time.Unix(0, rapid.Int64Range(0, 1<<60).Draw(t, "start"))
		granted := start.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "delay")))

		until := w.TrustedUntil(start)

		require.NoError(t, w.Validate())
		require.False(t, until.After(granted.Add(w.TTL-w.Margin)))
		require.True(t, w.Trusted(start, start))
		require.True(t, w.Trusted(until.Add(-1), start))
		require.False(t, w.Trusted(until, start))
	})
}

func TestWindowWithoutTimeToTrustIsRefused(t *testing.T) {
	t.Parallel()
	for _, w := range []fence.Window{{}, {TTL: -1}, {TTL: time.Second, Margin: time.Second}, {TTL: time.Second, Margin: -1}} {
		require.Error(t, w.Validate(), "%+v", w)
	}
}
