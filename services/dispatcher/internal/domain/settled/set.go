package settled

import (
	"fmt"
	"slices"
)

// Set is what one group is done with in one shard. The zero Set is not usable; New and Start make one.
type Set struct {
	hot    Hot
	chunks map[ChunkNo]Chunk // rows outside the hot pair
	order  []ChunkNo         // their numbers, ascending
	low    Offset
	below  int64
}

// Start is the hot pair of a group that begins at an offset: everything before it is settled.
func Start(at Offset) Hot {
	h := Hot{Chunk: chunkOf(at)}
	for i := range int(at % ChunkLen) {
		h.Bits[i/8] |= 1 << (i % 8)
	}
	return h
}

// StartWith is the set of a group that begins at an offset and is done with marked ones behind it.
func StartWith(at Offset, done *Marks) *Set {
	s := &Set{hot: Start(at), chunks: map[ChunkNo]Chunk{}}
	s.low = s.Next(0)
	var e Edit
	e.Begin(s)
	for o := range done.All() {
		if o >= at {
			e.Settle(o, false)
		}
	}
	s.Apply(e.Diff())
	return s
}

// New builds a set of a row's hot pair and all its chunk rows, in any order. It takes over their data.
func New(hot Hot, rows []Chunk) (*Set, error) {
	s := &Set{hot: hot, chunks: make(map[ChunkNo]Chunk, len(rows))}
	if hot.Chunk < 0 || hot.Chunk > maxChunk {
		return nil, fmt.Errorf("hot chunk %d: %w", hot.Chunk, ErrCorrupt)
	}
	for _, c := range rows {
		if err := c.check(); err != nil {
			return nil, err
		}
		if _, twice := s.chunks[c.No]; twice || s.isHot(c.No) {
			return nil, fmt.Errorf("chunk %d is there twice: %w", c.No, ErrCorrupt)
		}
		s.chunks[c.No] = c
		s.order = append(s.order, c.No)
		if c.No < hot.Chunk {
			s.below += c.unsettled()
		}
	}
	slices.Sort(s.order)
	s.low = s.Next(0)
	return s, nil
}

// Hot is the inline pair.
func (s *Set) Hot() *Hot { return &s.hot }

// Low is the first unsettled offset: everything before it is settled.
func (s *Set) Low() Offset { return s.low }

// Below counts the unsettled offsets in chunk rows below the hot pair.
func (s *Set) Below() int64 { return s.below }

// Rows returns the chunk rows in order. Their data MUST NOT be written.
func (s *Set) Rows() []Chunk {
	rows := make([]Chunk, len(s.order))
	for i, no := range s.order {
		rows[i] = s.chunks[no]
	}
	return rows
}

// Has tells whether the message at o is settled.
func (s *Set) Has(o Offset) bool {
	no, at := chunkOf(o), int(o%ChunkLen)
	if s.isHot(no) {
		at += int(no-s.hot.Chunk) * ChunkLen
		return s.hot.Bits[at/8]&(1<<(at%8)) != 0
	}
	if c, ok := s.chunks[no]; ok {
		return c.has(at)
	}
	return no < s.hot.Chunk
}

// Next is the first unsettled offset from o on. There always is one: nothing far above is settled.
func (s *Set) Next(o Offset) Offset {
	for {
		no, at := chunkOf(o), int(o%ChunkLen)
		if s.isHot(no) {
			start := Offset(s.hot.Chunk) * ChunkLen
			found := nextClear(s.hot.Bits[:], int(o-start))
			if found < 2*ChunkLen {
				return start + Offset(found)
			}
			o = start + 2*ChunkLen
			continue
		}
		c, ok := s.chunks[no]
		switch {
		case ok:
			if found := c.next(at); found < ChunkLen {
				return Offset(no)*ChunkLen + Offset(found)
			}
			o = Offset(no+1) * ChunkLen
		case no > s.hot.Chunk:
			return o
		default:
			o = Offset(s.rowFrom(no)) * ChunkLen
		}
	}
}

// rowFrom is the first chunk below the hot pair, from no on, that has a row, else the hot chunk.
func (s *Set) rowFrom(no ChunkNo) ChunkNo {
	if i, _ := slices.BinarySearch(s.order, no); i < len(s.order) && s.order[i] < s.hot.Chunk {
		return s.order[i]
	}
	return s.hot.Chunk
}

// Unsettled counts the messages before head that are not settled.
func (s *Set) Unsettled(head Offset) int64 {
	start := Offset(s.hot.Chunk) * ChunkLen
	n := s.below + int64(head-start) - ones(s.hot.Bits[:])
	for i := len(s.order) - 1; i >= 0 && s.order[i] > s.hot.Chunk; i-- {
		n -= ChunkLen - s.chunks[s.order[i]].unsettled()
	}
	return max(0, n)
}

func (s *Set) isHot(no ChunkNo) bool { return no == s.hot.Chunk || no == s.hot.Chunk+1 }

func chunkOf(o Offset) ChunkNo { return ChunkNo(o / ChunkLen) }
