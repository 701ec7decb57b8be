package store_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/store"
)

func TestFlushGivesDenseOffsetsInCommitOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()

	first, err := b.store.Flush(t.Context(), []store.Append{appendOf(shard, 7, 8, 9)})
	require.NoError(t, err)
	second, err := b.store.Flush(t.Context(), []store.Append{appendOf(shard, 7)})
	require.NoError(t, err)

	require.Equal(t, store.StatusAppended, first[0].Status)
	require.Equal(t, message.Offset(0), first[0].Base)
	require.Equal(t, message.Offset(3), second[0].Base)
	require.Equal(t, 1, second[0].Count)
	require.EqualValues(t, 1, second[0].ConfigVersion)
	require.False(t, second[0].CreatedAt.Before(first[0].CreatedAt))
	require.Equal(t, int64(2*len("body")), scan[int64](b, "SELECT end_bytes FROM dispatcher.shards WHERE id = $1", shard))
}

// Several processes flush to the same three shards at once, each to another choice of them: no offset is given twice or left out, and who reads
// after a flush returned finds it.
func TestFlushersOnTheSameShardsNeitherCollideNorDeadlock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shards := []message.ShardID{b.shard(), b.shard(), b.shard()}
	const flushers, rounds = 4, 60
	var mu sync.Mutex
	given := make(map[message.ShardID]map[message.Offset]bool)
	for _, shard := range shards {
		given[shard] = make(map[message.Offset]bool)
	}

	var group errgroup.Group
	for i := range flushers {
		_, s := b.open(nil)
		group.Go(func() error {
			known := make(map[message.ShardID]message.Offset)
			for round := range rounds {
				var appends []store.Append
				for j := range shards {
					shard := shards[(i+j)%len(shards)] // each in another order
					if (round+i+j)%3 == 0 {
						continue
					}
					a := appendOf(shard, make([]uint64, 1+round%4)...)
					a.Known = known[shard]
					appends = append(appends, a)
				}
				results, err := s.Flush(t.Context(), appends)
				if err != nil {
					return err
				}
				mu.Lock()
				for _, r := range results {
					known[r.Shard] = r.Base + message.Offset(r.Count)
					for offset := r.Base; offset < known[r.Shard]; offset++ {
						if r.Status != store.StatusAppended || given[r.Shard][offset] {
							t.Errorf("shard %d, offset %d: status %d, or given twice", r.Shard, offset, r.Status)
						}
						given[r.Shard][offset] = true
					}
				}
				mu.Unlock()
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())

	for _, shard := range shards {
		head := scan[int](b, "SELECT head FROM dispatcher.shards WHERE id = $1", shard)
		require.Len(t, given[shard], head)
		require.Equal(t, head, scan[int](b, "SELECT sum(count) FROM dispatcher.segments WHERE shard_id = $1", shard))
		require.Zero(t, scan[int](b, `SELECT count(*) FROM (SELECT created_at < lag(created_at) OVER (ORDER BY base_offset) AS back
			FROM dispatcher.segments WHERE shard_id = $1) x WHERE back`, shard), "time goes back")
	}
}

func TestFlushToSealedAndUnknownShardsSaysSoAndHarmsNoOther(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	good, sealed := b.shard(), b.shard()
	b.exec("UPDATE dispatcher.shards SET sealed = true, config_version = 5 WHERE id = $1", sealed)

	results, err := b.store.Flush(t.Context(), []store.Append{appendOf(sealed, 1), appendOf(99_999, 1), appendOf(good, 1)})
	require.NoError(t, err)

	require.Equal(t, store.StatusSealed, results[0].Status)
	require.EqualValues(t, 5, results[0].ConfigVersion)
	require.Equal(t, store.StatusGone, results[1].Status)
	require.Equal(t, store.StatusAppended, results[2].Status)
	require.Equal(t, 1, scan[int](b, "SELECT count(*) FROM dispatcher.segments"))
}

func TestFlushThatKnewTooHighAHeadLeavesThatShardOut(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard, other := b.shard(), b.shard()
	a, plain := appendOf(shard, 1, 2), appendOf(other, 3)
	a.Known = 1000

	results, err := b.store.Flush(t.Context(), []store.Append{a, plain})
	require.NoError(t, err)

	require.Equal(t, store.StatusLeftOut, results[0].Status)
	require.Equal(t, store.StatusAppended, results[1].Status)

	a.Known = 0
	results, err = b.store.Flush(t.Context(), []store.Append{a})
	require.NoError(t, err)
	require.Equal(t, store.StatusAppended, results[0].Status)
	require.Equal(t, message.Offset(0), results[0].Base)
	require.Equal(t, 2, results[0].Count)
}

func TestFlushRefusesTwoSegmentsOfOneShard(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()

	_, err := b.store.Flush(t.Context(), []store.Append{appendOf(shard, 1), appendOf(shard, 2)})

	require.Error(t, err)
	require.Zero(t, scan[int](b, "SELECT count(*) FROM dispatcher.segments"))
}

func TestSegmentsComeBackAsTheyWereFlushed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	encoder, err := segment.NewEncoder(1)
	require.NoError(t, err)
	var frames []segment.Frame
	for i := range 500 {
		frames = append(frames, segment.Frame{Hash: uint64(i % 7), Bytes: message.AppendFrame(nil, &message.Message{Partition: "p", Payload: make([]byte, i)})})
	}
	encoded, directory, err := encoder.Build(frames)
	require.NoError(t, err)

	done, err := b.store.Flush(t.Context(), []store.Append{{Shard: shard, FlushID: flushID(), Encoded: encoded}})
	require.NoError(t, err)
	directory.At = done[0].CreatedAt.UnixMicro()
	directories, err := b.store.Directories(t.Context(), shard, 100, 500, 10)
	require.NoError(t, err)
	bodies, err := b.store.Bodies(t.Context(), shard, []message.Offset{0, 17})
	require.NoError(t, err)

	require.Equal(t, []segment.Directory{directory}, directories)
	require.Len(t, bodies, 1)
	require.Equal(t, directory, bodies[0].Directory)
	require.Equal(t, encoded.Codec, bodies[0].Codec)
	require.Equal(t, encoded.Body, bodies[0].Body)
	require.WithinDuration(t, time.Now(), bodies[0].CreatedAt, time.Minute)
}

func TestDirectoriesAreBoundedAndSkipWhatWasTrimmed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	for range 10 {
		_, err := b.store.Flush(t.Context(), []store.Append{appendOf(shard, 1, 2, 3)})
		require.NoError(t, err)
	}
	b.exec("DELETE FROM dispatcher.segments WHERE shard_id = $1 AND base_offset < 9", shard)
	bases := func(from, to message.Offset, most int) []message.Offset {
		found, err := b.store.Directories(t.Context(), shard, from, to, most)
		require.NoError(t, err)
		bases := []message.Offset{}
		for _, d := range found {
			bases = append(bases, d.Base)
		}
		return bases
	}

	require.Equal(t, []message.Offset{9, 12}, bases(0, 30, 5))
	require.Equal(t, []message.Offset{9}, bases(10, 30, 1))
	require.Equal(t, []message.Offset{12, 15, 18}, bases(14, 20, 100))
	require.Equal(t, []message.Offset{27}, bases(29, 100, 100))
	require.Empty(t, bases(30, 100, 100))
	require.Empty(t, bases(0, 5, 100))
}

func TestSearchFindsAPartitionAndNotItsBytesAcrossHashes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	const wanted = 0x0102030405060708
	across := []uint64{0xFFFFFFFF01020304, 0x05060708FFFFFFFF}
	for _, hashes := range [][]uint64{{1, wanted}, across, {wanted, 5}, {3}, {4, 4, wanted}} {
		_, err := b.store.Flush(t.Context(), []store.Append{appendOf(shard, hashes...)})
		require.NoError(t, err)
	}
	search := func(from, to message.Offset, limit int) ([]message.Offset, message.Offset) {
		found, searched, err := b.store.SearchPartition(t.Context(), shard, wanted, from, to, limit)
		require.NoError(t, err)
		bases := []message.Offset{}
		for _, d := range found {
			bases = append(bases, d.Base)
		}
		return bases, searched
	}

	found, searched := search(0, 10, 10)
	require.Equal(t, []message.Offset{0, 4, 7}, found)
	require.Equal(t, message.Offset(10), searched)
	found, searched = search(2, 10, 1)
	require.Empty(t, found, "the bytes are there, the hash is not")
	require.Equal(t, message.Offset(4), searched)
	found, searched = search(1, 10, 1)
	require.Equal(t, []message.Offset{0}, found)
	require.Equal(t, message.Offset(2), searched)
	found, _ = search(5, 7, 10)
	require.Empty(t, found, "it lies before the range, in a segment that reaches into it")
}

func TestPollTellsHeadsAndVersionsAndLeavesOutWhatIsGone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	gs := b.groupShard(shard)
	_, err := b.store.Flush(t.Context(), []store.Append{appendOf(shard, 1, 2)})
	require.NoError(t, err)

	heads, versions, err := b.store.Poll(t.Context(), map[message.ShardID]message.Offset{shard: 1, 777: 0}, known(gs, 1))
	require.NoError(t, err)

	require.Equal(t, map[message.ShardID]store.Head{shard: {Head: 2, ConfigVersion: 1}}, heads)
	require.Equal(t, known(gs, 1), versions)
}

// A context that ends in the middle leaves nobody in doubt: what FindFlush says is what is in the log.
func TestFindFlushIsRightWhenTheCallerGaveUp(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	for i := range 50 {
		a := appendOf(shard, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)

		_, err := b.store.Flush(ctx, []store.Append{a})
		cancel()
		_, found, ferr := b.store.FindFlush(t.Context(), []store.Sought{{Shard: shard, FlushID: a.FlushID}})
		require.NoError(t, ferr)

		require.Equal(t, 1, scan[int](b, "SELECT count(*) FILTER (WHERE flush_id = $1) + $2 FROM dispatcher.segments", a.FlushID, 1-toInt(found)))
		if err == nil {
			require.True(t, found)
		}
	}
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
