package store_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/placement"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/store"
)

// peeked is what a peek shows: payloads, where it began, and where to go on.
func (c *cold) peeked(q store.Queue, p store.Peek) (shown []string, from, next message.Offset) {
	c.t.Helper()
	if p.MaxBytes == 0 {
		p.MaxBytes = 4 << 20
	}
	got, err := c.control.Peek(c.t.Context(), q, p)
	require.NoError(c.t, err)
	for i, m := range got.Messages {
		shown = append(shown, string(m.Payload))
		require.Equal(c.t, q.Shards[got.Shard], m.Shard)
		require.True(c.t, i == 0 || got.Messages[i-1].Offset < m.Offset, "in the order of the log")
		require.True(c.t, got.From <= m.Offset && m.Offset < got.Next)
	}
	return shown, got.From, got.Next
}

func TestAPeekShowsWhatIsInTheLogAndWhereToGoOn(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	c.push(q, msg("p", "0"), msg("r", "1"), msg("p", "2"))
	c.push(q, msg("p", "3"))
	c.push(q, msg("r", "4"), msg("p", "5"))

	m := msg("p", "0")
	size := message.WireBound(uint32(message.FrameSize(&m)))

	for _, s := range []struct {
		name       string
		peek       store.Peek
		shown      []string
		from, next message.Offset
	}{
		{"all", store.Peek{Limit: 9}, []string{"0", "1", "2", "3", "4", "5"}, 0, 6},
		{"the first", store.Peek{Limit: 2}, []string{"0", "1"}, 0, 2},
		{"from inside a segment", store.Peek{From: queue.From{Offset: 1}, Limit: 3}, []string{"1", "2", "3"}, 1, 4},
		{"a partition", store.Peek{Partition: "r", Limit: 9}, []string{"1", "4"}, 0, 6},
		{"the first of a partition", store.Peek{Partition: "p", Limit: 2}, []string{"0", "2"}, 0, 3},
		{"no such partition", store.Peek{Partition: "x", Limit: 9}, nil, 0, 6},
		{"the last", store.Peek{From: queue.From{Latest: true}, Limit: 3}, []string{"3", "4", "5"}, 3, 6},
		{"all from the end", store.Peek{From: queue.From{Latest: true}, Limit: 9}, []string{"0", "1", "2", "3", "4", "5"}, 0, 6},
		{"the last of a partition", store.Peek{Partition: "r", From: queue.From{Latest: true}, Limit: 1}, []string{"4"}, 4, 6},
		{"at the head", store.Peek{From: queue.From{Offset: 6}, Limit: 9}, nil, 6, 6},
		{"above the head", store.Peek{From: queue.From{Offset: 60}, Limit: 9}, nil, 60, 60},
		{"one, whatever its size", store.Peek{Limit: 9, MaxBytes: 1}, []string{"0"}, 0, 1},
		{"two by their bytes", store.Peek{Limit: 9, MaxBytes: 2 * size}, []string{"0", "1"}, 0, 2},
		{"the last by its bytes", store.Peek{From: queue.From{Latest: true}, Limit: 9, MaxBytes: 1}, []string{"5"}, 5, 6},
	} {
		shown, from, next := c.peeked(q, s.peek)
		require.Equal(t, s.shown, shown, s.name)
		require.Equal(t, []message.Offset{s.from, s.next}, []message.Offset{from, next}, s.name)
	}
	c.exec("UPDATE dispatcher.shards SET tail = 2")
	shown, from, _ := c.peeked(q, store.Peek{Limit: 1})
	require.Equal(t, []string{"2"}, shown, "what was trimmed is passed over")
	require.Equal(t, message.Offset(2), from)
	shown, from, _ = c.peeked(q, store.Peek{From: queue.From{Latest: true}, Limit: 9})
	require.Equal(t, []string{"2", "3", "4", "5"}, shown)
	require.Equal(t, message.Offset(2), from)
}

func TestAPeekLooksIntoTheShardOfItsPartition(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	done, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Shards: ptr(3)}})
	require.NoError(t, err)
	q := done.Queue
	for i := range 9 {
		c.push(q, msg(fmt.Sprint("p", i), strconv.Itoa(i)))
	}

	var all []string
	for shard := range 3 {
		shown, _, _ := c.peeked(q, store.Peek{Shard: shard, Limit: 100})
		all = append(all, shown...)
	}
	require.ElementsMatch(t, []string{"0", "1", "2", "3", "4", "5", "6", "7", "8"}, all)
	for i := range 9 {
		shown, _, _ := c.peeked(q, store.Peek{Partition: fmt.Sprint("p", i), Limit: 100})
		require.Equal(t, []string{strconv.Itoa(i)}, shown)
	}
	_, err = c.control.Peek(t.Context(), q, store.Peek{Shard: 3, Limit: 1, MaxBytes: 1})
	require.ErrorIs(t, err, &invalid.Error{Code: invalid.OutOfRange, Field: "shard"})
}

// A partition that is not there costs each call a bounded number of segments, and going on finds what lies behind them, from either end.
func TestAPeekForARarePartitionIsBoundedAndGoesOn(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	c.push(q, msg("noise", "0"))
	const segments = 2500
	c.exec(`INSERT INTO dispatcher.segments (shard_id, base_offset, count, created_at, codec, key_id, partitions, sizes, body, flush_id)
		SELECT shard_id, n, count, created_at, codec, key_id, partitions, sizes, body, flush_id FROM dispatcher.segments, generate_series(1, $1 - 1) AS n`, segments)
	c.exec("UPDATE dispatcher.shards SET head = $1", segments)
	c.push(q, msg("rare", "found"))

	var calls int
	var shown []string
	for next := message.Offset(0); next <= segments; calls++ {
		var from message.Offset
		shown, from, next = c.peeked(q, store.Peek{Partition: "rare", From: queue.From{Offset: int64(next)}, Limit: 1})
		require.LessOrEqual(t, next-from, message.Offset(1024))
	}
	require.Equal(t, []string{"found"}, shown)
	require.Equal(t, 3, calls)
	_, from, next := c.peeked(q, store.Peek{Partition: "nobody", From: queue.From{Latest: true}, Limit: 1})
	require.Equal(t, message.Offset(segments+1-1024), from)
	require.Equal(t, message.Offset(segments+1), next)

	// Segments that may hold it by their hashes, and do not by their names, are read: fewer of them a call.
	collide := placement.Hash("nobody")
	c.exec("UPDATE dispatcher.segments SET partitions = decode(lpad(to_hex($1::bigint), 16, '0'), 'hex') WHERE base_offset < $2", int64(collide), segments)
	shown, _, next = c.peeked(q, store.Peek{Partition: "nobody", Limit: 1})
	require.Empty(t, shown)
	require.Equal(t, message.Offset(64), next)
}

func TestAPeekChangesNothing(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	g := c.group(q, "g", store.GroupOptions{})
	c.push(q, msg("p", "0"), msg("p", "1"))
	c.lease(g.Shards[0], 1, "1 minute")
	before := c.everything()

	_, _, _ = c.peeked(q, store.Peek{Limit: 9})
	_, _, _ = c.peeked(q, store.Peek{Partition: "p", From: queue.From{Latest: true}, Limit: 9})

	require.Equal(t, before, c.everything())
}
