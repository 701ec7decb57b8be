package tail

import "slices"

// ring holds the newest chunks of a tail, in the order in which they came. In each shard they follow one another without a gap.
type ring struct {
	maxMessages, maxBytes int64

	chunks   []*chunk
	first    uint64 // number of chunks[0]
	end      []int64
	messages int64
	bytes    int64
}

// next is the number of the chunk to come.
func (r *ring) next() uint64 { return r.first + uint64(len(r.chunks)) }

// start is where the ring begins, by shard.
func (r *ring) start() []int64 {
	if len(r.chunks) == 0 {
		return r.end
	}
	return r.chunks[0].before
}

// add appends a chunk and drops the oldest beyond the bounds. The newest always stays.
func (r *ring) add(c *chunk) {
	r.chunks = append(r.chunks, c)
	r.end = slices.Clone(r.end)
	r.end[c.page.GetShard()] = c.page.GetNext()
	r.messages += int64(len(c.page.GetMessages()))
	r.bytes += c.bytes
	drop := 0
	for drop < len(r.chunks)-1 && (r.messages > r.maxMessages || r.bytes > r.maxBytes) {
		r.messages -= int64(len(r.chunks[drop].page.GetMessages()))
		r.bytes -= r.chunks[drop].bytes
		r.chunks[drop] = nil
		drop++
	}
	r.chunks = r.chunks[drop:]
	r.first += uint64(drop)
}

// at returns the chunk of a number from first to next-1.
func (r *ring) at(n uint64) *chunk { return r.chunks[n-r.first] }

// covers says that nothing is missing between a place and the ring.
func (r *ring) covers(at []int64) bool {
	for i, start := range r.start() {
		if at[i] < start {
			return false
		}
	}
	return true
}
