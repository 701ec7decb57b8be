package settled

import (
	"maps"
	"slices"
)

// Raise settles everything below to except keep, and returns how many offsets became settled by that. The hot pair moves along, so a log that was trimmed
// leaves no chunk rows behind but those with an offset that is kept. It costs nothing for chunks that have no row.
func (e *Edit) Raise(to Offset, keep []Offset) int64 {
	last := chunkOf(to)
	kept := make([]Offset, 0, len(keep))
	for _, off := range keep {
		if off < to && !e.Has(off) {
			kept = append(kept, off)
		}
	}
	count := e.unsettledBelow(to) - int64(len(kept))
	if count == 0 {
		return 0
	}
	e.changed = true
	for _, no := range e.outside() {
		if no < last {
			fillBelow(e.chunk(no)[:], ChunkLen)
		}
	}
	if last > e.hot.Chunk {
		e.moveTo(last)
	}
	if last == e.hot.Chunk {
		fillBelow(e.hot.Bits[:], int(to%ChunkLen))
	} else if slices.Contains(e.outside(), last) {
		fillBelow(e.chunk(last)[:], int(to%ChunkLen))
	}
	for _, off := range kept {
		e.Unsettle(off)
	}
	return count
}

// outside lists the chunks that are neither hot nor without a row, in order.
func (e *Edit) outside() []ChunkNo {
	nos := slices.AppendSeq(slices.Clone(e.set.order), maps.Keys(e.touched))
	slices.Sort(nos)
	return slices.DeleteFunc(slices.Compact(nos), func(no ChunkNo) bool { return no == e.hot.Chunk || no == e.hot.Chunk+1 })
}

// moveTo makes to the first chunk of the hot pair. All below it is settled, but for what is reopened afterwards.
func (e *Edit) moveTo(to ChunkNo) {
	e.takeIn(to)
	e.raised = to
}

// unsettledBelow counts the offsets below to that are not settled.
func (e *Edit) unsettledBelow(to Offset) int64 {
	last := chunkOf(to)
	n := int64(0)
	open := func(no ChunkNo, m bitmap) int64 {
		limit := ChunkLen
		if no == last {
			limit = int(to % ChunkLen)
		}
		before := ones(m[:])
		fillBelow(m[:], limit)
		return ones(m[:]) - before
	}
	for i := range ChunkNo(2) {
		if no := e.hot.Chunk + i; no <= last {
			n += open(no, bitmap(e.hot.Bits[i*ChunkBytes:][:ChunkBytes]))
		}
	}
	if first := Offset(e.hot.Chunk+2) * ChunkLen; to > first {
		n += int64(to - first)
	}
	for _, no := range e.outside() {
		if no > last {
			break
		}
		var m bitmap
		if touched, ok := e.touched[no]; ok {
			m = *touched
		} else {
			e.set.chunks[no].bits(&m)
		}
		if n += open(no, m); no > e.hot.Chunk {
			n -= open(no, bitmap{})
		}
	}
	return n
}

// fillBelow sets the bits of b below limit.
func fillBelow(b []byte, limit int) {
	for i := range limit / 8 {
		b[i] = 0xff
	}
	if limit%8 != 0 {
		b[limit/8] |= 1<<(limit%8) - 1
	}
}
