package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

// state writes what a group has settled of a shard of the given length, as the engine keeps it: a hot pair, and a row for each chunk outside that is not
// what its absence says.
func (c *cold) state(gs lease.GroupShardID, head, hotChunk int64, isSettled func(int64) bool) (depth, low int64) {
	c.t.Helper()
	c.exec("DELETE FROM dispatcher.settled_chunks")
	hot := make([]byte, settled.HotBytes)
	below := int64(0)
	low = head
	for chunk := range head/settled.ChunkLen + 1 {
		var open []byte
		bits := make([]byte, settled.ChunkBytes)
		done := 0
		for i := range int64(settled.ChunkLen) {
			at := chunk*settled.ChunkLen + i
			if at < head && isSettled(at) {
				bits[i/8] |= 1 << (i % 8)
				done++
				continue
			}
			open = append(open, byte(i), byte(i>>8))
			if at < head {
				depth++
				low = min(low, at)
				if chunk < hotChunk {
					below++
				}
			}
		}
		encoding, data := settled.EncodingBitmap, bits
		if len(open) < 2*256 {
			encoding, data = settled.EncodingList, open
		} else if done == 0 {
			encoding, data = settled.EncodingNone, nil
		}
		switch {
		case chunk == hotChunk || chunk == hotChunk+1:
			copy(hot[(chunk-hotChunk)*settled.ChunkBytes:], bits)
		case chunk < hotChunk && len(open) == 0, chunk > hotChunk && done == 0:
		default:
			c.exec(`INSERT INTO dispatcher.settled_chunks VALUES (encode(int8send($1) || int8send($2), 'hex')::uuid, $3, $4)`,
				int64(gs), chunk, int16(encoding), append([]byte{}, data...))
		}
	}
	c.exec("UPDATE dispatcher.group_shards SET hot_chunk = $1, hot = $2, unsettled_below = $3, low = $4 WHERE id = $5", hotChunk, hot, below, low, gs)
	c.exec("UPDATE dispatcher.shards SET head = $1 WHERE id = (SELECT shard_id FROM dispatcher.group_shards WHERE id = $2)", head, gs)
	return depth, low
}

func TestDepthIsWhatIsNotSettledWhereverItLies(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	g := c.group(q, "g", store.GroupOptions{})
	seed := uint64(0)

	rapid.Check(t, func(r *rapid.T) {
		head := rapid.Int64Range(0, 7*settled.ChunkLen).Draw(r, "head")
		hotChunk := rapid.Int64Range(0, 6).Draw(r, "hot chunk")
		frontier := rapid.Int64Range(0, head).Draw(r, "frontier")
		stuck := rapid.Uint64Range(1, 5000).Draw(r, "one in")
		ahead := rapid.Uint64Range(0, 300).Draw(r, "ahead one in")
		depth, low := c.state(g.Shards[0], head, hotChunk, func(at int64) bool {
			seed = (uint64(at) + stuck) * 0x9E3779B97F4A7C15
			if chunk := at / settled.ChunkLen; at < frontier || chunk < hotChunk && hotChunk > 2 {
				return seed>>20%stuck != 0 || stuck == 1
			}
			return ahead > 0 && seed>>20%ahead == 0
		})

		d, err := c.control.QueueDetail(c.t.Context(), q)
		require.NoError(r, err)
		require.Equal(r, head, d.Stats.Messages)
		require.Equal(r, depth, d.Stats.Depth)
		require.Equal(r, depth, d.States[g.ID].Depth)
		require.Equal(r, head-low, d.States[g.ID].Lag)
	})
}

func TestQueueIsAsDeepAsItsDeepestGroup(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	done, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Shards: ptr(2)}})
	require.NoError(t, err)
	q := done.Queue
	for i := range 40 {
		c.push(q, msg(string(rune('a'+i)), "x"))
	}
	stats, err := c.control.QueueStats(t.Context(), []int64{q.ID, 999})
	require.NoError(t, err)
	require.Len(t, stats, 1)
	require.Equal(t, int64(40), stats[q.ID].Depth, "no group: all messages")
	require.Equal(t, scan[int64](c.bench, "SELECT sum(octet_length(body)) FROM dispatcher.segments"), stats[q.ID].StoredBytes)

	c.group(q, "late", store.GroupOptions{Start: queue.Start{Kind: queue.Latest}})
	stats, err = c.control.QueueStats(t.Context(), []int64{q.ID})
	require.NoError(t, err)
	require.Zero(t, stats[q.ID].Depth)
	c.group(q, "early", store.GroupOptions{})
	c.push(q, msg("a", "y"))
	stats, err = c.control.QueueStats(t.Context(), []int64{q.ID})
	require.NoError(t, err)
	require.Equal(t, int64(41), stats[q.ID].Depth)
	require.Equal(t, 2, stats[q.ID].Groups)
}

func TestGroupCountsItsLeasesRetriesAndDeadLetters(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	done, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Shards: ptr(2)}})
	require.NoError(t, err)
	q := done.Queue
	g, other := c.group(q, "g", store.GroupOptions{}), c.group(q, "other", store.GroupOptions{})
	entries := window.EncodeEntries(nil, false, []window.Entry{{Offset: 3, Hash: 1, Size: 10}, {Offset: 9, Hash: 2, Size: 10}, {Offset: 11, Hash: 2, Size: 10}})
	for i, gs := range []lease.GroupShardID{g.Shards[0], g.Shards[1], g.Shards[1], other.Shards[0]} {
		c.lease(int64(gs), i+1, "1 hour")
		c.exec(`INSERT INTO dispatcher.retries VALUES (encode(int8send($1) || int8send($2), 'hex')::uuid, 1, 1, 1, now() + interval '1 h', -1, '')`, int64(gs), int64(i))
	}
	c.exec("UPDATE dispatcher.leases SET entries = $1", entries)
	c.exec(`INSERT INTO dispatcher.retries VALUES (encode(int8send($1) || int8send(99), 'hex')::uuid, 1, 1, 1, now() - interval '1 h', -1, '')`, int64(g.Shards[0]))
	c.deadLetter(q, "g", "p", "x")
	redriven := c.deadLetter(q, "g", "p", "x")
	c.exec("UPDATE dispatcher.dead_letters SET redriven_at = now() WHERE id = $1", redriven)

	s, err := c.control.GroupStats(t.Context(), g)
	require.NoError(t, err)
	require.Equal(t, []int64{1, 3, 9, 3, 1, 0}, []int64{s.GroupID, s.Leases, s.Leased, s.Retrying, s.DeadLetters, s.Lost})
	require.Equal(t, []int64{0, 0}, s.FirstAvailable)
	require.False(t, s.Expired(0), "there is nothing it could do")
	d, err := c.control.QueueDetail(t.Context(), q)
	require.NoError(t, err)
	require.Len(t, d.Groups, 2)
	require.Equal(t, []int64{s.Leased, s.Retrying}, []int64{d.States[g.ID].Leased, d.States[g.ID].Retrying})
	require.Equal(t, int64(1), d.States[other.ID].Leases)
	require.Equal(t, int64(3), d.States[other.ID].Leased)
}

func TestAGroupThatLeavesMessagesAloneForLongSaysThatItExpired(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	g := c.group(q, "g", store.GroupOptions{})
	expired := func() bool {
		s, err := c.control.GroupStats(t.Context(), g)
		require.NoError(t, err)
		return s.Expired(24 * time.Hour)
	}

	c.exec("UPDATE dispatcher.group_shards SET active_at = active_at - interval '25 hours'")
	require.False(t, expired(), "nothing waits for it")
	c.push(q, msg("p", "1"))
	require.False(t, expired(), "what waits came just now")
	c.exec("UPDATE dispatcher.segments SET created_at = created_at - interval '25 hours'")
	require.True(t, expired())
	c.exec("UPDATE dispatcher.group_shards SET active_at = active_at + interval '2 hours'")
	require.False(t, expired(), "it did something 23 hours ago")
}
