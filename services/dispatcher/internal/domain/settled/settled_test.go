package settled_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"postrider.dev/services/dispatcher/internal/domain/settled"
)

// model is the naive form: a map of what is done.
type model struct {
	start settled.Offset
	done  map[settled.Offset]bool
}

func (m *model) has(o settled.Offset) bool { return o < m.start || m.done[o] }

func (m *model) unsettle(o settled.Offset) {
	for at := o; at < m.start; at++ {
		m.done[at] = true
	}
	m.start = min(m.start, o)
	delete(m.done, o)
}

func (m *model) next(o settled.Offset) settled.Offset {
	for m.has(o) {
		o++
	}
	return o
}

func (m *model) unsettled(head settled.Offset) (n int64) {
	for o := m.start; o < head; o++ {
		if !m.done[o] {
			n++
		}
	}
	return n
}

const (
	chunks = 12
	head   = chunks * settled.ChunkLen
)

func TestSetEqualsAMapOfDoneOffsets(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &model{start: settled.Offset(rapid.IntRange(0, 9000).Draw(t, "start")), done: map[settled.Offset]bool{}}
		s, err := settled.New(settled.Start(m.start), nil)
		require.NoError(t, err)
		rows := map[settled.ChunkNo]settled.Chunk{}
		var edit settled.Edit
		for range rapid.IntRange(1, 12).Draw(t, "edits") {
			edit.Begin(s)
			for range rapid.IntRange(1, 4).Draw(t, "settles") {
				from := settled.Offset(rapid.IntRange(0, head-1).Draw(t, "from"))
				if rapid.Bool().Draw(t, "near low") {
					from = min(m.next(s.Low()), head-1)
				}
				slide, back := rapid.Bool().Draw(t, "slide"), rapid.IntRange(0, 3).Draw(t, "back") == 0
				for o := from; o < min(head, from+settled.Offset(rapid.SampledFrom([]int{1, 3, 4000, 9000}).Draw(t, "run"))); o++ {
					if back {
						edit.Unsettle(o)
						m.unsettle(o)
						continue
					}
					edit.Settle(o, slide)
					if o >= m.start {
						m.done[o] = true
					}
				}
				require.Equal(t, !back, edit.Has(from))
			}
			if rapid.IntRange(0, 2).Draw(t, "raise") == 0 {
				raise(t, m, &edit)
			}
			d := edit.Diff()
			s.Apply(d)
			for _, no := range d.Deletes {
				delete(rows, no)
			}
			for _, c := range d.Upserts {
				rows[c.No] = c
			}
			check(t, m, s)
			reload(t, s, d, rows)
		}
	})
}

func TestStartWithIsDoneWithTheMarksAndWhatLiesBefore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &model{start: settled.Offset(rapid.IntRange(0, head).Draw(t, "start")), done: map[settled.Offset]bool{}}
		var marks settled.Marks
		for _, o := range rapid.SliceOf(rapid.IntRange(0, head-1)).Draw(t, "marks") {
			marks.Add(settled.Offset(o))
			if settled.Offset(o) >= m.start {
				m.done[settled.Offset(o)] = true
			}
		}

		s := settled.StartWith(m.start, &marks)

		check(t, m, s)
		again, err := settled.New(*s.Hot(), s.Rows())
		require.NoError(t, err)
		require.Equal(t, again.Low(), s.Low())
		require.Equal(t, again.Below(), s.Below())
	})
}

// raise settles all below an offset but a few, in the model too.
func raise(t *rapid.T, m *model, edit *settled.Edit) {
	to := settled.Offset(rapid.IntRange(0, head-1).Draw(t, "raise to"))
	if rapid.Bool().Draw(t, "near") {
		to = min(m.next(0)+settled.Offset(rapid.SampledFrom([]int{0, 1, 100, 5000}).Draw(t, "beyond")), head-1)
	}
	var keep []settled.Offset
	for range rapid.IntRange(0, 4).Draw(t, "kept") {
		keep = append(keep, settled.Offset(rapid.IntRange(0, head-1).Draw(t, "keep")))
	}
	slices.Sort(keep)
	keep = slices.Compact(keep)
	want := int64(0)
	for o := m.start; o < to; o++ {
		if !m.done[o] && !slices.Contains(keep, o) {
			m.done[o] = true
			want++
		}
	}
	require.Equal(t, want, edit.Raise(to, keep))
	for _, o := range keep {
		require.Equal(t, m.has(o), edit.Has(o), "kept %d", o)
	}
	if after := m.next(to); after < head {
		edit.Settle(after, true) // the edit goes on
		m.done[after] = true
	}
}

func check(t *rapid.T, m *model, s *settled.Set) {
	require.Equal(t, m.next(0), s.Low())
	require.Equal(t, m.unsettled(head+5), s.Unsettled(head+5))
	for o := settled.Offset(0); o < head; o += 61 {
		require.Equal(t, m.has(o), s.Has(o), "offset %d", o)
	}
	for range 5 {
		o := settled.Offset(rapid.IntRange(0, head+5000).Draw(t, "next from"))
		require.Equal(t, m.next(o), s.Next(o))
	}
}

// reload demands that the rows alone give the same set.
func reload(t *rapid.T, s *settled.Set, d settled.Diff, rows map[settled.ChunkNo]settled.Chunk) {
	list := make([]settled.Chunk, 0, len(rows))
	for _, c := range rows {
		list = append(list, c)
	}
	again, err := settled.New(d.Hot, list)
	require.NoError(t, err)
	require.Equal(t, s.Low(), again.Low())
	require.Equal(t, d.Low, again.Low())
	require.Equal(t, d.Below, again.Below())
	require.Equal(t, s.Rows(), again.Rows())
	for _, c := range list {
		if c.No < d.Hot.Chunk {
			require.NotEqual(t, int64(0), settled.CountUnsettled(c), "a settled chunk below has no row")
		}
	}
}

func TestStuckOffsetsCostTwoBytesEach(t *testing.T) {
	t.Parallel()
	s, err := settled.New(settled.Start(0), nil)
	require.NoError(t, err)
	var edit settled.Edit
	written := 0

	for base := settled.Offset(0); base < 100*settled.ChunkLen; base += settled.ChunkLen {
		edit.Begin(s)
		for i := settled.Offset(0); i < settled.ChunkLen; i++ {
			if i%100 != 0 { // each hundredth is stuck
				edit.Settle(base+i, true)
			}
		}
		d := edit.Diff()
		for _, c := range d.Upserts {
			written += len(c.Data)
		}
		s.Apply(d)
	}

	require.EqualValues(t, 0, s.Low())
	require.EqualValues(t, 98*41, s.Below())
	require.Equal(t, 98*41*2, written, "each chunk is written once, two bytes for each straggler")
}

func TestSlidingOverAnUntouchedBacklogKeepsItUnsettled(t *testing.T) {
	t.Parallel()
	s, err := settled.New(settled.Start(0), nil)
	require.NoError(t, err)
	var edit settled.Edit
	edit.Begin(s)

	edit.Settle(1000*settled.ChunkLen+5, true)
	s.Apply(edit.Diff())

	require.EqualValues(t, 0, s.Low())
	require.EqualValues(t, 999*settled.ChunkLen, s.Below())
	require.Len(t, s.Rows(), 999)
	require.True(t, s.Has(1000*settled.ChunkLen+5))
	require.False(t, s.Has(500*settled.ChunkLen))
	require.EqualValues(t, 1001*settled.ChunkLen-1, s.Unsettled(1001*settled.ChunkLen))
}

func FuzzChunkRows(f *testing.F) {
	f.Add(int64(3), int16(1), []byte{0, 0, 5, 0})
	f.Add(int64(9), int16(2), make([]byte, settled.ChunkBytes))
	f.Fuzz(func(t *testing.T, no int64, encoding int16, data []byte) {
		c := settled.Chunk{No: settled.ChunkNo(no), Encoding: settled.Encoding(encoding), Data: data}
		s, err := settled.New(settled.Hot{Chunk: 7}, []settled.Chunk{c})
		if err != nil {
			require.ErrorIs(t, err, settled.ErrCorrupt)
			return
		}
		var count int64
		for o := settled.Offset(0); o < settled.ChunkLen; o++ {
			if !s.Has(settled.Offset(no)*settled.ChunkLen + o) {
				count++
			}
		}
		require.Equal(t, settled.CountUnsettled(c), count)
	})
}
