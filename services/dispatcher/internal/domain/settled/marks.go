package settled

import (
	"iter"
	"maps"
	"slices"
)

// Marks is a set of offsets that costs a bit each where they lie close together. A nil Marks is empty.
type Marks struct{ pages map[ChunkNo]*bitmap }

// Add puts o into the set.
func (m *Marks) Add(o Offset) {
	no, at := chunkOf(o), int(o%ChunkLen)
	page := m.pages[no]
	if page == nil {
		if m.pages == nil {
			m.pages = map[ChunkNo]*bitmap{}
		}
		page = new(bitmap)
		m.pages[no] = page
	}
	page[at/8] |= 1 << (at % 8)
}

// Has tells whether o is in the set.
func (m *Marks) Has(o Offset) bool {
	if m == nil {
		return false
	}
	page, at := m.pages[chunkOf(o)], int(o%ChunkLen)
	return page != nil && page[at/8]&(1<<(at%8)) != 0
}

// Chunks counts the chunks that hold any of the set: what it costs, and what a change about all of it writes at most.
func (m *Marks) Chunks() int {
	if m == nil {
		return 0
	}
	return len(m.pages)
}

// All yields the set in order.
func (m *Marks) All() iter.Seq[Offset] {
	return func(yield func(Offset) bool) {
		if m == nil {
			return
		}
		for _, no := range slices.Sorted(maps.Keys(m.pages)) {
			page := m.pages[no]
			for at := range ChunkLen {
				if page[at/8]&(1<<(at%8)) != 0 && !yield(Offset(no)*ChunkLen+Offset(at)) {
					return
				}
			}
		}
	}
}
