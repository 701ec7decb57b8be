package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

func TestATraceIsOfOneMessageOfTheQueueAndChangesNothing(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q, foreign := c.queue("a", "q"), c.queue("b", "q")
	c.group(q, "late", store.GroupOptions{})
	c.group(q, "early", store.GroupOptions{})
	c.push(q, msg("p", "0"), msg("p", "1"))
	c.push(foreign, msg("p", "secret"))
	id := message.ID{Shard: q.Shards[0], Offset: 1}
	before := c.everything()

	got, err := c.control.Trace(t.Context(), q, id, store.TracePage{})
	require.NoError(t, err)
	require.Equal(t, "1", string(got.Payload))
	require.Len(t, got.Groups, 2)
	require.Equal(t, store.GroupTrace{Group: "early", Standing: window.Standing{Place: window.Ready, BlockedBy: -1}}, got.Groups[0])
	require.Equal(t, "late", got.Groups[1].Group)
	got, err = c.control.Trace(t.Context(), q, id, store.TracePage{Group: "late"})
	require.NoError(t, err)
	require.Len(t, got.Groups, 1)
	require.Equal(t, before, c.everything())

	_, err = c.control.Trace(t.Context(), q, id, store.TracePage{Group: "nobody"})
	require.ErrorIs(t, err, store.ErrGroupNotFound)
	_, err = c.control.Trace(t.Context(), q, message.ID{Shard: q.Shards[0], Offset: 2}, store.TracePage{})
	require.ErrorIs(t, err, store.ErrMessageNotFound, "above the head")
	_, err = c.control.Trace(t.Context(), q, message.ID{Shard: foreign.Shards[0]}, store.TracePage{})
	require.ErrorIs(t, err, store.ErrMessageNotFound, "another tenant's")
}

func TestATraceOfWhatWasTrimmedTellsOfItsDeadLetter(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	g := c.group(q, "g", store.GroupOptions{})
	c.push(q, msg("p", "0"), msg("p", "1"))
	letter := c.deadLetter(q, "g", "p", "0") // at offset 0
	c.exec("UPDATE dispatcher.dead_letters SET group_id = $1", g.ID)
	c.exec("UPDATE dispatcher.shards SET tail = 2")

	got, err := c.control.Trace(t.Context(), q, message.ID{Shard: q.Shards[0]}, store.TracePage{})
	require.NoError(t, err)
	require.True(t, got.Trimmed)
	require.Empty(t, got.Payload)
	require.Equal(t, &store.TracedLetter{ID: letter, Reason: "attempts", LastError: "boom"}, got.Groups[0].Letter)
	got, err = c.control.Trace(t.Context(), q, message.ID{Shard: q.Shards[0], Offset: 1}, store.TracePage{})
	require.NoError(t, err)
	require.True(t, got.Trimmed)
	require.Nil(t, got.Groups[0].Letter)
}
