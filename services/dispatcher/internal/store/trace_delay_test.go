package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

func TestATraceTellsUntilWhenAMessageIsTooYoung(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	done, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Delay: ptr(15 * time.Minute)}})
	require.NoError(t, err)
	q := done.Queue
	c.group(q, "g", store.GroupOptions{})
	c.push(q, msg("p", "0"))
	id := message.ID{Shard: q.Shards[0]}

	young, err := c.control.Trace(t.Context(), q, id, store.TracePage{})
	require.NoError(t, err)
	c.exec("UPDATE dispatcher.segments SET created_at = created_at - interval '15 minutes'")
	old, err := c.control.Trace(t.Context(), q, id, store.TracePage{})
	require.NoError(t, err)

	due := window.DBTimeOf(young.CreatedAt).Add(15 * time.Minute)
	require.Equal(t, window.Standing{Place: window.Waiting, RetryAt: due, BlockedBy: -1}, young.Groups[0].Standing)
	require.Equal(t, window.Standing{Place: window.Ready, BlockedBy: -1}, old.Groups[0].Standing)
}
