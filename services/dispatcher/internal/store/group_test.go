package store_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/store"
)

// beginning reads where a group-shard begins, and checks that its row says the same in every column.
func (c *cold) beginning(gs lease.GroupShardID) int64 {
	c.t.Helper()
	var chunk, low, below int64
	var hot []byte
	require.NoError(c.t, c.db.QueryRow(c.t.Context(), "SELECT hot_chunk, low, unsettled_below, hot FROM dispatcher.group_shards WHERE id = $1", gs).
		Scan(&chunk, &low, &below, &hot))
	want := settled.Start(settled.Offset(low))
	require.Equal(c.t, int64(want.Chunk), chunk)
	require.Equal(c.t, want.Bits[:], hot, "as the domain begins at %d", low)
	require.Zero(c.t, below)
	for i := range int64(2 * settled.ChunkLen) {
		set := hot[i/8]>>(i%8)&1 == 1
		require.Equal(c.t, chunk*settled.ChunkLen+i < low, set, "bit %d of a group at %d", i, low)
	}
	return low
}

func TestGroupBeginsAtTheOldestMessageUnlessItSaysOtherwise(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	c.push(q, msg("p", "1"), msg("p", "2"))

	g, created, err := c.control.EnsureGroup(t.Context(), q, "g", store.GroupOptions{})
	require.NoError(t, err)
	require.True(t, created)
	require.Equal(t, queue.Group{Name: "g", Mode: queue.Ordered, OnFailure: queue.Block, Start: queue.Start{Kind: queue.Earliest}}, g.Group)
	require.Zero(t, c.beginning(g.Shards[0]))

	again, created, err := c.control.EnsureGroup(t.Context(), q, "g", store.GroupOptions{})
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, g, again)
}

func TestGroupAtLatestHasOnlyWhatCommitsLater(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	for _, head := range []int64{0, 1, 7, 8, 4095, 4096, 4097, 12345, 4096 * 3} {
		q := c.queue("a", time.Duration(head).String())
		c.exec("UPDATE dispatcher.shards SET head = $1 WHERE id = $2", head, q.Shards[0])
		g := c.group(q, "g", store.GroupOptions{Start: queue.Start{Kind: queue.Latest}})
		require.Equal(t, head, c.beginning(g.Shards[0]))
	}
}

func TestGroupAtATimeBeginsWithTheFirstMessageOfThatTime(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	var at []time.Time
	for range 9 {
		c.push(q, msg("p", "1"), msg("p", "2"), msg("p", "3"))
	}
	rows, err := c.db.Query(t.Context(), "SELECT created_at FROM dispatcher.segments ORDER BY base_offset")
	require.NoError(t, err)
	for rows.Next() {
		var v time.Time
		require.NoError(t, rows.Scan(&v))
		at = append(at, v)
	}
	require.NoError(t, rows.Err())
	starts := func(s time.Time) int64 {
		g := c.group(q, s.String(), store.GroupOptions{Start: queue.Start{Kind: queue.AtTime, Time: s.UTC()}})
		return c.beginning(g.Shards[0])
	}

	require.Zero(t, starts(at[0].Add(-time.Hour)))
	for i, v := range at {
		require.Equal(t, int64(3*i), starts(v))
		require.Equal(t, int64(3*i+3), starts(v.Add(time.Microsecond)))
	}
	require.Equal(t, int64(27), starts(at[8].Add(30*time.Second)), "a clock a little ahead means now")

	_, _, err = c.control.EnsureGroup(t.Context(), q, "future", store.GroupOptions{Start: queue.Start{Kind: queue.AtTime, Time: time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC)}})
	require.ErrorIs(t, err, &invalid.Error{Code: invalid.OutOfRange, Field: "start"})
}

func TestGroupHasAStateOnEachShard(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	done, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{Shards: ptr(5)}})
	require.NoError(t, err)
	q := done.Queue
	for i, shard := range q.Shards {
		c.exec("UPDATE dispatcher.shards SET head = $1 WHERE id = $2", int64(100*i), shard)
	}

	g := c.group(q, "g", store.GroupOptions{Start: queue.Start{Kind: queue.Latest}})
	require.Len(t, g.Shards, 5)
	for i, gs := range g.Shards {
		require.Equal(t, int64(100*i), c.beginning(gs))
		require.Equal(t, int64(q.Shards[i]), scan[int64](c.bench, "SELECT shard_id FROM dispatcher.group_shards WHERE id = $1", gs))
	}
}

func TestRacingCreatorsGetOneGroup(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	controls := []*store.Control{c.control, c.another()}
	ids, made := make([]int64, 16), make([]bool, 16)

	noErrors(t, race(len(ids), func(i int) error {
		g, created, err := controls[i%2].EnsureGroup(t.Context(), q, "g", store.GroupOptions{Mode: []queue.Mode{queue.Ordered, queue.Shared}[i%2]})
		ids[i], made[i] = g.ID, created
		return err
	}))
	count := 0
	for i := range ids {
		require.Equal(t, ids[0], ids[i])
		if made[i] {
			count++
		}
	}
	require.Equal(t, 1, count)
	require.Equal(t, int64(1), scan[int64](c.bench, "SELECT count(*) FROM dispatcher.group_shards"))
}

func TestExistingGroupWithOtherOptionsIsAnError(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	ctx := t.Context()
	start := queue.Start{Kind: queue.AtTime, Time: time.Date(2020, 1, 2, 3, 4, 5, 6000, time.UTC)}
	c.queue("a", "q")
	_, _, err := c.control.CreateGroup(ctx, by("a"), "q", "g", store.GroupOptions{Mode: queue.Shared, Start: start})
	require.NoError(t, err)

	for field, o := range map[string]store.GroupOptions{
		"mode":       {Mode: queue.Ordered},
		"on_failure": {OnFailure: queue.Skip},
		"start":      {Start: queue.Start{Kind: queue.Latest}},
	} {
		_, _, err := c.control.CreateGroup(ctx, by("a"), "q", "g", o)
		require.ErrorIs(t, err, &invalid.Error{Code: invalid.GroupMismatch, Field: field})
	}
	_, created, err := c.control.CreateGroup(ctx, by("a"), "q", "g", store.GroupOptions{Mode: queue.Shared, OnFailure: queue.Block, Start: start})
	require.NoError(t, err)
	require.False(t, created)
	require.Len(t, c.audited(), 2, "refused ones leave no entry")
}

func TestQueueHasNoMoreGroupsThanItMayHoweverTheyRace(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	done, err := c.control.Configure(t.Context(), by("a"), "q", queue.Patch{Set: queue.Options{MaxGroups: ptr(3)}})
	require.NoError(t, err)

	errs := race(8, func(i int) error {
		_, _, err := c.control.EnsureGroup(t.Context(), done.Queue, string(rune('a'+i)), store.GroupOptions{})
		return err
	})
	refused := 0
	for _, err := range errs {
		if err != nil {
			require.ErrorIs(t, err, store.ErrTooManyGroups)
			refused++
		}
	}
	require.Equal(t, 5, refused)
	require.Equal(t, int64(3), scan[int64](c.bench, "SELECT count(*) FROM dispatcher.groups"))
}

func TestDeletedGroupIsFencedAndItsNameStartsAfresh(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	ctx := t.Context()
	q := c.queue("a", "q")
	old := c.group(q, "g", store.GroupOptions{Mode: queue.Shared})
	kept := c.group(q, "kept", store.GroupOptions{})
	c.lease(int64(old.Shards[0]), 1, "1 hour")
	c.lease(int64(kept.Shards[0]), 1, "1 hour")

	_, err := c.control.DeleteGroup(ctx, by("a"), "q", "g")
	require.NoError(t, err)
	_, err = c.control.FindGroup(ctx, q, "g")
	require.ErrorIs(t, err, store.ErrGroupNotFound)
	require.Zero(t, scan[int64](c.bench, "SELECT count(*) FROM dispatcher.group_shards WHERE id = $1", old.Shards[0]))

	again := c.group(q, "g", store.GroupOptions{Mode: queue.Ordered})
	require.NotEqual(t, old.ID, again.ID)
	require.NotEqual(t, old.Shards, again.Shards)
	c.purgeAll()
	require.Equal(t, int64(1), scan[int64](c.bench, "SELECT count(*) FROM dispatcher.leases"), "the other group's lease stays")

	_, err = c.control.DeleteGroup(ctx, by("a"), "q", "nobody")
	require.ErrorIs(t, err, store.ErrGroupNotFound)
}

func TestGroupIsNeverMadeInAQueueThatIsBeingDeleted(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	for i := range 20 {
		name := string(rune('a' + i))
		q := c.queue("a", name)
		errs := race(2, func(i int) error {
			if i == 0 {
				_, err := c.control.DeleteQueue(t.Context(), by("a"), name, false)
				return err
			}
			_, _, err := c.control.EnsureGroup(t.Context(), q, "g", store.GroupOptions{})
			return err
		})
		require.NoError(t, errs[0])
		if errs[1] != nil {
			require.ErrorIs(t, errs[1], store.ErrQueueNotFound)
		}
	}
	require.Zero(t, scan[int64](c.bench, "SELECT (SELECT count(*) FROM dispatcher.groups) + (SELECT count(*) FROM dispatcher.group_shards)"))
}
