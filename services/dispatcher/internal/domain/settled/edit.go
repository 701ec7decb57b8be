package settled

import (
	"maps"
	"slices"
)

// maxSlide bounds how many chunks one edit leaves behind, and so how many rows one change writes for it. Farther offsets become a
// chunk row above.
const maxSlide = 4096

// nearSlide is how far the pair follows even what is taken ahead of the others: where all consumers ask by name, that is progress.
const nearSlide = 2

// Edit collects what becomes settled, or unsettled again, without touching its Set. The zero Edit is ready for Begin and may be used again.
type Edit struct {
	set     *Set
	hot     Hot
	touched map[ChunkNo]*bitmap // chunks outside the new hot pair, decoded
	reopen  Offset              // the lowest offset that was unsettled; the set's low one if none was
	raised  ChunkNo             // chunks below it that are not touched are settled whatever the set says; at most the hot pair's
	changed bool
}

// Diff is the row changes of an Edit: the store writes them, Apply follows.
type Diff struct {
	Hot     Hot
	Low     Offset
	Below   int64
	Upserts []Chunk
	Deletes []ChunkNo
}

// Begin starts an edit of s, forgetting any other.
func (e *Edit) Begin(s *Set) {
	e.set, e.hot, e.raised, e.reopen, e.changed = s, s.hot, 0, s.low, false
	clear(e.touched)
}

// Changed tells whether anything was settled or unsettled.
func (e *Edit) Changed() bool { return e.changed }

// Has tells whether o is settled, by the set or by the edit.
func (e *Edit) Has(o Offset) bool {
	no, at := chunkOf(o), int(o%ChunkLen)
	if no == e.hot.Chunk || no == e.hot.Chunk+1 {
		at += int(no-e.hot.Chunk) * ChunkLen
		return e.hot.Bits[at/8]&(1<<(at%8)) != 0
	}
	if m, ok := e.touched[no]; ok {
		return m[at/8]&(1<<(at%8)) != 0
	}
	return no < e.raised || e.set.Has(o)
}

// Settle marks o. Not far beyond the hot pair, or with slide (normal progress), the pair moves there; otherwise o becomes part of a chunk
// row above (a message taken far ahead of the others).
func (e *Edit) Settle(o Offset, slide bool) {
	no, at := chunkOf(o), int(o%ChunkLen)
	if ahead := no - e.hot.Chunk - 1; ahead > 0 && (ahead <= nearSlide || slide && ahead <= maxSlide) {
		e.slide(no - 1)
	}
	e.changed = true
	if no == e.hot.Chunk || no == e.hot.Chunk+1 {
		at += int(no-e.hot.Chunk) * ChunkLen
		e.hot.Bits[at/8] |= 1 << (at % 8)
		return
	}
	e.chunk(no)[at/8] |= 1 << (at % 8)
}

// Unsettle takes the mark of o away. The pair stays where it is.
func (e *Edit) Unsettle(o Offset) {
	no, at := chunkOf(o), int(o%ChunkLen)
	e.changed = true
	e.reopen = min(e.reopen, o)
	if no == e.hot.Chunk || no == e.hot.Chunk+1 {
		at += int(no-e.hot.Chunk) * ChunkLen
		e.hot.Bits[at/8] &^= 1 << (at % 8)
		return
	}
	e.chunk(no)[at/8] &^= 1 << (at % 8)
}

// slide makes to the first chunk of the hot pair; to is above the present one. What is left behind is kept in touched.
func (e *Edit) slide(to ChunkNo) {
	old := e.hot
	for no := old.Chunk; no < to; no++ {
		if no <= old.Chunk+1 {
			e.put(no, (*bitmap)(old.Bits[(no-old.Chunk)*ChunkBytes:]))
		} else {
			e.chunk(no) // a chunk nobody touched becomes a row: below the pair its absence would mean settled
		}
	}
	e.takeIn(to)
}

// takeIn makes the hot pair of the chunks to and to+1, out of the present pair and of what lies above it.
func (e *Edit) takeIn(to ChunkNo) {
	old := e.hot
	e.hot = Hot{Chunk: to}
	for i := range ChunkNo(2) {
		half := e.hot.Bits[i*ChunkBytes:][:ChunkBytes]
		if no := to + i; no <= old.Chunk+1 {
			copy(half, old.Bits[(no-old.Chunk)*ChunkBytes:])
		} else {
			copy(half, e.chunk(no)[:])
			delete(e.touched, no)
		}
	}
}

// chunk is the decoded bits of a chunk outside the hot pair, ready to be written.
func (e *Edit) chunk(no ChunkNo) *bitmap {
	if m, ok := e.touched[no]; ok {
		return m
	}
	m := new(bitmap)
	if row, ok := e.set.chunks[no]; ok {
		row.bits(m)
	} else if no < e.set.hot.Chunk || no < e.raised {
		for i := range m {
			m[i] = 0xff
		}
	}
	e.put(no, m)
	return m
}

func (e *Edit) put(no ChunkNo, m *bitmap) {
	if e.touched == nil {
		e.touched = map[ChunkNo]*bitmap{}
	}
	e.touched[no] = m
}

// Diff is what the edit changes, rows in order. It shares nothing with the Edit.
func (e *Edit) Diff() Diff {
	d := Diff{Hot: e.hot, Low: e.reopen, Below: e.set.below}
	for _, no := range slices.Sorted(maps.Keys(e.touched)) {
		row, had := e.set.chunks[no]
		if had && no < e.set.hot.Chunk {
			d.Below -= row.unsettled()
		}
		c, below := encode(no, e.touched[no]), no < e.hot.Chunk
		if below {
			d.Below += c.unsettled()
		}
		absent := below && c.unsettled() == 0 || !below && c.Encoding == EncodingNone
		switch {
		case !absent:
			d.Upserts = append(d.Upserts, c)
		case had:
			d.Deletes = append(d.Deletes, no)
		}
	}
	for no := e.hot.Chunk; no <= e.hot.Chunk+1; no++ {
		if _, had := e.set.chunks[no]; had {
			d.Deletes = append(d.Deletes, no)
		}
	}
	if e.Has(d.Low) {
		d.Low = e.next(d.Low)
	}
	return d
}

// next is Set.Next seen through the edit.
func (e *Edit) next(o Offset) Offset {
	for {
		no, at := chunkOf(o), int(o%ChunkLen)
		if no == e.hot.Chunk || no == e.hot.Chunk+1 {
			start := Offset(e.hot.Chunk) * ChunkLen
			if found := nextClear(e.hot.Bits[:], int(o-start)); found < 2*ChunkLen {
				return start + Offset(found)
			}
			o = start + 2*ChunkLen
			continue
		}
		if m, ok := e.touched[no]; ok {
			if found := nextClear(m[:], at); found < ChunkLen {
				return Offset(no)*ChunkLen + Offset(found)
			}
			o = Offset(no+1) * ChunkLen
			continue
		}
		if no < e.raised {
			o = e.nearer(Offset(no+1)*ChunkLen, Offset(e.hot.Chunk)*ChunkLen)
			continue
		}
		found := e.set.Next(o)
		if chunkOf(found) == no {
			return found
		}
		// The set skips what it holds settled; the edit may hold other bits there, so it looks again at each chunk it touched.
		o = e.nearer(Offset(no+1)*ChunkLen, found)
	}
}

// nearer is the first offset from o on, at most limit, whose chunk the edit holds itself.
func (e *Edit) nearer(o, limit Offset) Offset {
	best := limit
	for no := range e.touched {
		if start := Offset(no) * ChunkLen; start >= o && start < best {
			best = start
		}
	}
	if start := Offset(e.hot.Chunk) * ChunkLen; start >= o && start < best {
		best = start
	}
	return best
}

// Apply makes s what the edit said. The diff MUST come from an edit of this very state.
func (s *Set) Apply(d Diff) {
	s.hot, s.low, s.below = d.Hot, d.Low, d.Below
	for _, no := range d.Deletes {
		delete(s.chunks, no)
	}
	for _, c := range d.Upserts {
		s.chunks[c.No] = c
	}
	if len(d.Deletes)+len(d.Upserts) > 0 {
		s.order = slices.Sorted(maps.Keys(s.chunks))
	}
}
