package store_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

// sought seeks the group "g" of the queue "q" and returns where it stands.
func (c *cold) sought(s store.Seek) []message.Offset {
	c.t.Helper()
	moved, err := c.control.Seek(c.t.Context(), by("a"), "q", "g", s)
	require.NoError(c.t, err)
	var at []message.Offset
	for _, p := range moved.Positions {
		at = append(at, p.To)
	}
	return at
}

func at(offsets ...int64) store.Seek { return store.Seek{To: queue.Place{Offsets: offsets}} }

func kind(k queue.StartKind) store.Seek {
	return store.Seek{To: queue.Place{Start: queue.Start{Kind: k}}}
}

func TestSeekMovesEveryShardToWhereItIsAsked(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	done, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Shards: ptr(2)}})
	require.NoError(t, err)
	q := done.Queue
	for i := range 40 {
		c.push(q, msg("p"+strconv.Itoa(i), "x"))
	}
	heads := []message.Offset{
		message.Offset(scan[int64](c.bench, "SELECT head FROM dispatcher.shards WHERE id = $1", q.Shards[0])),
		message.Offset(scan[int64](c.bench, "SELECT head FROM dispatcher.shards WHERE id = $1", q.Shards[1])),
	}
	g := c.group(q, "g", store.GroupOptions{})
	stands := func() []message.Offset {
		return []message.Offset{message.Offset(c.beginning(g.Shards[0])), message.Offset(c.beginning(g.Shards[1]))}
	}

	require.Equal(t, heads, c.sought(kind(queue.Latest)))
	require.Equal(t, heads, stands())
	require.Equal(t, []message.Offset{3, 5}, c.sought(at(3, 5)))
	require.Equal(t, []message.Offset{3, 5}, stands())
	require.Equal(t, []message.Offset{0, 0}, c.sought(kind(queue.Earliest)))
	require.Equal(t, []message.Offset{0, 0}, stands())
	when := scan[time.Time](c.bench, "SELECT created_at FROM dispatcher.segments WHERE shard_id = $1 AND base_offset = 7", q.Shards[0])
	got := c.sought(store.Seek{To: queue.Place{Start: queue.Start{Kind: queue.AtTime, Time: when}}})
	require.EqualValues(t, 7, got[0])
	require.Equal(t, got, stands())

	versions := scan[int64](c.bench, "SELECT sum(version) FROM dispatcher.group_shards")
	require.EqualValues(t, 2*(1+4), versions, "each seek is one change of each")
	require.Equal(t, "a ann group.seek queue/q/group/g", c.audited()[1])
}

func TestASeekToNoPlaceInTheLogIsRefusedAndChangesNothing(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	done, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Shards: ptr(2)}})
	require.NoError(t, err)
	c.push(done.Queue, msg("p", "x"), msg("q", "x"), msg("r", "x"), msg("s", "x"))
	c.group(done.Queue, "g", store.GroupOptions{})
	before := c.everything()
	future := store.Seek{To: queue.Place{Start: queue.Start{Kind: queue.AtTime, Time: time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC)}}}
	part := at(0, 0)
	part.Partition = "p"

	for name, want := range map[string]struct {
		seek  store.Seek
		field string
	}{
		"a bare number with two shards":  {at(1), "offsets"},
		"one too many":                   {at(0, 0, 0), "offsets"},
		"two for one partition":          {part, "offsets"},
		"beyond the head of one of them": {at(0, 1000), "offsets[1]"},
		"a time to come":                 {future, "to"},
	} {
		_, err := c.control.Seek(t.Context(), by("a"), "q", "g", want.seek)
		require.ErrorIs(t, err, &invalid.Error{Code: invalid.OutOfRange, Field: want.field}, name)
	}
	_, err = c.control.Seek(t.Context(), by("a"), "q", "h", kind(queue.Latest))
	require.ErrorIs(t, err, store.ErrGroupNotFound)
	_, err = c.control.Seek(t.Context(), by("b"), "q", "g", kind(queue.Latest))
	require.ErrorIs(t, err, store.ErrQueueNotFound)
	require.Equal(t, before, c.everything())
}

func TestASeekOfOnePartitionTakesTheOffsetOfItsShard(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	done, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Shards: ptr(3)}})
	require.NoError(t, err)
	for range 4 {
		c.push(done.Queue, msg("p", "x"), msg("q", "x"))
	}
	c.group(done.Queue, "g", store.GroupOptions{})
	c.sought(kind(queue.Latest))
	seek := at(1)
	seek.Partition = "p"

	moved, err := c.control.Seek(t.Context(), by("a"), "q", "g", seek)

	require.NoError(t, err)
	require.Len(t, moved.Positions, 1)
	require.EqualValues(t, 1, moved.Positions[0].To)
	states, err := c.control.QueueDetail(t.Context(), done.Queue)
	require.NoError(t, err)
	require.EqualValues(t, 3, states.States[states.Groups[0].ID].Depth, "of p alone, but for the first")
}
