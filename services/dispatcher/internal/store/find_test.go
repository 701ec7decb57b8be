package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/store"
)

// What is committed stays so whatever happens while the reason of what was left out is read: an error would have everything appended again.
func TestAFlushIsNotPutInDoubtByWhatFollowsItsCommit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	good, sealed := b.shard(), b.shard()
	b.exec("UPDATE dispatcher.shards SET sealed = true WHERE id = $1", sealed)
	s, p := b.behindProxy()
	flush := func() ([]store.Appended, error) {
		return s.Flush(t.Context(), []store.Append{appendOf(sealed, 1), appendOf(good, 1)})
	}
	for range 2 { // statements are prepared
		_, err := flush()
		require.NoError(t, err)
	}

	p.arm(2, cutBefore)
	results, err := flush()

	_, did := p.count()
	require.True(t, did)
	require.NoError(t, err)
	require.Equal(t, store.StatusLeftOut, results[0].Status)
	require.Equal(t, store.StatusAppended, results[1].Status)
	require.Equal(t, 3, scan[int](b, "SELECT head FROM dispatcher.shards WHERE id = $1", good))
}

func TestFindFlushAnswersEachShardAsTheFlushWouldHave(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	good, sealed, open := b.shard(), b.shard(), b.shard()
	b.exec("UPDATE dispatcher.shards SET sealed = true, config_version = 5 WHERE id = $1", sealed)
	appends := []store.Append{appendOf(sealed, 1), appendOf(99_999, 1), appendOf(good, 1, 2), appendOf(open, 1)}
	appends[3].Known = 1_000 // left out
	sought := func(appends []store.Append) (out []store.Sought) {
		for _, a := range appends {
			out = append(out, store.Sought{Shard: a.Shard, FlushID: a.FlushID, Known: a.Known})
		}
		return out
	}

	flushed, err := b.store.Flush(t.Context(), appends)
	require.NoError(t, err)
	got, found, err := b.store.FindFlush(t.Context(), sought(appends))
	require.NoError(t, err)
	_, other, err := b.store.FindFlush(t.Context(), sought([]store.Append{appendOf(good, 1), appendOf(sealed, 1)}))
	require.NoError(t, err)

	require.True(t, found)
	require.Equal(t, flushed, got)
	require.Equal(t, []store.Status{store.StatusSealed, store.StatusGone, store.StatusAppended, store.StatusLeftOut},
		[]store.Status{got[0].Status, got[1].Status, got[2].Status, got[3].Status})
	require.False(t, other)
}
