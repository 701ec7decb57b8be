package store_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/placement"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/store"
)

// laned makes the queue "q" with lanes of so many shards.
func (c *cold) laned(lanes, shards int) store.Queue {
	c.t.Helper()
	done, err := c.control.Configure(c.t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Lanes: &lanes, Shards: &shards}})
	require.NoError(c.t, err)
	return done.Queue
}

// pushTo appends messages to a lane.
func (c *cold) pushTo(q store.Queue, priority int, messages ...message.Message) {
	c.t.Helper()
	for _, m := range messages {
		hash := q.Hash(m.Partition)
		encoded, _, err := c.enc.Build([]segment.Frame{{Hash: hash, Bytes: message.AppendFrame(nil, &m)}})
		require.NoError(c.t, err)
		done, err := c.store.Flush(c.t.Context(), []store.Append{{Encoded: encoded, Shard: q.ShardOf(priority, hash), FlushID: flushID()}})
		require.NoError(c.t, err)
		require.Equal(c.t, store.StatusAppended, done[0].Status)
	}
}

func TestAQueueHasTheLanesItWasMadeWithTheLowestFirst(t *testing.T) {
	t.Parallel()
	c := newCold(t)

	q := c.laned(3, 4)

	require.Len(t, q.Shards, 12)
	require.True(t, slices.IsSorted(q.Shards))
	require.Equal(t, placement.Layout{Lanes: 3, Shards: 4}, q.Layout())
	for i, id := range q.Shards {
		require.Equal(t, i/4, scan[int](c.bench, "SELECT lane FROM dispatcher.shards WHERE id = $1", id))
		require.Equal(t, i/4, q.PriorityOf(id))
	}
	g := c.group(q, "g", store.GroupOptions{})
	require.Len(t, g.Shards, 12)
	again, err := c.control.FindQueue(t.Context(), "a", "q")
	require.NoError(t, err)
	require.Equal(t, q.Layout(), again.Layout())
	_, err = c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Lanes: ptr(4)}})
	require.ErrorIs(t, err, &invalid.Error{Code: invalid.OptionFixed, Field: "lanes"})
	_, err = c.control.Configure(t.Context(), by("a"), "wide", queue.Patch{Set: queue.Options{Lanes: ptr(5), Shards: ptr(13)}})
	require.ErrorIs(t, err, &invalid.Error{Code: invalid.OutOfRange, Field: "lanes"})
	require.Equal(t, 1, scan[int](c.bench, "SELECT count(*) FROM dispatcher.queues"), "what is refused is not made")
}

// A queue that was made before there were lanes says nothing of them.
func TestAQueueOfBeforeThereWereLanesHasOne(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	done, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Shards: ptr(7)}})
	require.NoError(t, err)

	require.Equal(t, "{\"shards\": 7}", scan[string](c.bench, "SELECT config::text FROM dispatcher.queues"))
	require.Equal(t, placement.Layout{Lanes: 1, Shards: 7}, done.Queue.Layout())
	hash := placement.Hash("a")
	require.Equal(t, done.Queue.Shards[placement.Shard(hash, 7)], done.Queue.ShardOf(0, hash))
}

func TestAPartitionThatIsUsedInSeveralLanesIsListedOnceForEach(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.laned(3, 2)
	for range 2 {
		c.pushTo(q, 2, msg("b", "x"))
		c.pushTo(q, 0, msg("b", "x"), msg("a", "x"), msg("c", "x"))
		require.NoError(t, c.catalogue(c.control, q))
	}

	type row struct {
		name     string
		priority int
		last     message.Offset
	}
	list := func(size int) (rows []row) {
		name, shard := "", message.ShardID(0)
		for {
			page, err := c.control.ListPartitions(t.Context(), q, name, shard, size)
			require.NoError(t, err)
			for _, p := range page {
				rows = append(rows, row{p.Name, q.PriorityOf(p.Shard), p.LastOffset})
				name, shard = p.Name, p.Shard
			}
			if len(page) < size {
				return rows
			}
		}
	}

	all := list(10)
	require.Len(t, all, 4)
	require.Equal(t, []string{"a", "b", "b", "c"}, []string{all[0].name, all[1].name, all[2].name, all[3].name})
	require.Equal(t, []int{0, 0, 2, 0}, []int{all[0].priority, all[1].priority, all[2].priority, all[3].priority})
	require.EqualValues(t, 1, all[2].last, "the row follows the log")
	require.Equal(t, all, list(1), "page by page it is the same")
	rest, err := c.control.ListPartitions(t.Context(), q, "b", math.MaxInt64, 10)
	require.NoError(t, err)
	require.Len(t, rest, 1, "behind a name alone no lane of it is left")
}

func TestASeekOfAPartitionMovesItInEveryLaneAndNoOther(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.laned(2, 1)
	c.pushTo(q, 0, msg("p", "0"), msg("r", "1"), msg("p", "2"))
	c.pushTo(q, 1, msg("r", "0"), msg("p", "1"))
	g := c.group(q, "g", store.GroupOptions{})

	moved := c.sought(store.Seek{Partition: "p", To: queue.Place{Start: queue.Start{Kind: queue.Latest}}})

	require.Equal(t, []message.Offset{3, 2}, moved, "one place a lane")
	stats, err := c.control.GroupStats(t.Context(), g)
	require.NoError(t, err)
	require.EqualValues(t, 2, stats.Depth, "the other partition is where it was")
	require.Equal(t, []message.Offset{2, 1}, c.sought(store.Seek{Partition: "p", To: queue.Place{Offsets: []int64{2, 1}}}))
	_, err = c.control.Seek(t.Context(), by("a"), "q", "g", store.Seek{Partition: "p", To: queue.Place{Offsets: []int64{1}}})
	require.ErrorIs(t, err, &invalid.Error{Code: invalid.OutOfRange, Field: "offsets"})
}

func TestAPeekOfAPartitionLooksIntoTheLaneThatIsNamed(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.laned(2, 3)
	c.pushTo(q, 0, msg("p", "low"))
	c.pushTo(q, 1, msg("p", "high"))

	low, _, _ := c.peeked(q, store.Peek{Partition: "p", Limit: 9})
	high, _, _ := c.peeked(q, store.Peek{Partition: "p", Priority: 1, Limit: 9})
	_, err := c.control.Peek(t.Context(), q, store.Peek{Partition: "p", Priority: 2, Limit: 9})

	require.Equal(t, []string{"low"}, low)
	require.Equal(t, []string{"high"}, high)
	require.ErrorIs(t, err, &invalid.Error{Code: invalid.LaneUnknown, Field: "priority"})
}

func TestOfOneClientIDInSeveralLanesTheNewestIsFound(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.laned(3, 2)
	named := func(payload string) message.Message {
		m := msg("p", payload)
		m.ClientID = "c"
		return m
	}
	for _, priority := range []int{1, 2, 0, 1} {
		c.pushTo(q, priority, named("of lane "+string(rune('0'+priority))))

		f, ok, err := c.control.FindByClientID(t.Context(), q, "p", "c")

		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, "of lane "+string(rune('0'+priority)), string(f.Payload))
		require.Equal(t, priority, q.PriorityOf(f.Shard))
	}
}
