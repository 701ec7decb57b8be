package peer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
)

func TestALineAboutFailuresTellsOfThoseThatHadNone(t *testing.T) {
	t.Parallel()
	clk := clock.NewFake(time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC))
	q := newQuiet(clk)

	first, ok := q.failed(reasonSecret)
	require.True(t, ok)
	require.Equal(t, 1, first)
	for range 999 {
		_, ok := q.failed(reasonSecret)
		require.False(t, ok)
	}
	other, ok := q.failed(reasonTLS)
	require.True(t, ok, "another reason has its own line")
	require.Equal(t, 1, other)
	clk.Advance(tellEvery)
	later, ok := q.failed(reasonSecret)

	require.True(t, ok)
	require.Equal(t, 1000, later)
}
