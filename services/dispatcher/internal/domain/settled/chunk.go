package settled

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sort"
)

// ErrCorrupt says that stored bits are not what this code wrote.
var ErrCorrupt = errors.New("corrupt settled set")

// maxChunk keeps offsets far from overflow.
const maxChunk ChunkNo = 1 << 50

// bitmap is one chunk, a bit set where the offset is settled.
type bitmap = [ChunkBytes]byte

// check refuses data that does not fit its encoding.
func (c Chunk) check() error {
	ok := c.No >= 0 && c.No <= maxChunk
	switch c.Encoding {
	case EncodingNone:
		ok = ok && len(c.Data) == 0
	case EncodingBitmap:
		ok = ok && len(c.Data) == ChunkBytes
	case EncodingList:
		ok = ok && len(c.Data)%2 == 0 && len(c.Data) < 2*listBelow
		for i := 0; ok && i < len(c.Data); i += 2 {
			at := binary.LittleEndian.Uint16(c.Data[i:])
			ok = at < ChunkLen && (i == 0 || at > binary.LittleEndian.Uint16(c.Data[i-2:]))
		}
	default:
		ok = false
	}
	if !ok {
		return fmt.Errorf("chunk %d, encoding %d, %d bytes: %w", c.No, c.Encoding, len(c.Data), ErrCorrupt)
	}
	return nil
}

// has tells whether position at is settled.
func (c Chunk) has(at int) bool {
	switch c.Encoding {
	case EncodingList:
		i := c.search(at)
		return 2*i >= len(c.Data) || int(binary.LittleEndian.Uint16(c.Data[2*i:])) != at
	case EncodingBitmap:
		return c.Data[at/8]&(1<<(at%8)) != 0
	default:
		return false
	}
}

// next is the first unsettled position from at on, ChunkLen if there is none.
func (c Chunk) next(at int) int {
	switch c.Encoding {
	case EncodingList:
		if i := c.search(at); 2*i < len(c.Data) {
			return int(binary.LittleEndian.Uint16(c.Data[2*i:]))
		}
		return ChunkLen
	case EncodingBitmap:
		return nextClear(c.Data, at)
	default:
		return at
	}
}

// search is the index of the first listed position that is at least at.
func (c Chunk) search(at int) int {
	return sort.Search(len(c.Data)/2, func(i int) bool { return int(binary.LittleEndian.Uint16(c.Data[2*i:])) >= at })
}

// unsettled counts the positions that are not settled.
func (c Chunk) unsettled() int64 {
	switch c.Encoding {
	case EncodingList:
		return int64(len(c.Data) / 2)
	case EncodingBitmap:
		return ChunkLen - ones(c.Data)
	default:
		return ChunkLen
	}
}

// bits decodes into m.
func (c Chunk) bits(m *bitmap) {
	switch c.Encoding {
	case EncodingList:
		for i := range m {
			m[i] = 0xff
		}
		for i := 0; i < len(c.Data); i += 2 {
			at := binary.LittleEndian.Uint16(c.Data[i:])
			m[at/8] &^= 1 << (at % 8)
		}
	case EncodingBitmap:
		copy(m[:], c.Data)
	default:
		*m = bitmap{}
	}
}

// encode picks the shortest form of m.
func encode(no ChunkNo, m *bitmap) Chunk {
	open := ChunkLen - ones(m[:])
	switch {
	case open == ChunkLen:
		return Chunk{No: no, Encoding: EncodingNone, Data: []byte{}}
	case open >= listBelow:
		return Chunk{No: no, Encoding: EncodingBitmap, Data: append([]byte(nil), m[:]...)}
	}
	data := make([]byte, 0, 2*open)
	for at := nextClear(m[:], 0); at < ChunkLen; at = nextClear(m[:], at+1) {
		data = binary.LittleEndian.AppendUint16(data, uint16(at))
	}
	return Chunk{No: no, Encoding: EncodingList, Data: data}
}

// nextClear is the first clear bit of b from at on, 8*len(b) if there is none. len(b) MUST be a multiple of 8.
func nextClear(b []byte, at int) int {
	for word := at / 64 * 8; word < len(b); word += 8 {
		open := ^binary.LittleEndian.Uint64(b[word:])
		if word*8 < at {
			open &= ^uint64(0) << (at % 64)
		}
		if open != 0 {
			return word*8 + bits.TrailingZeros64(open)
		}
	}
	return 8 * len(b)
}

// ones counts the set bits of b. len(b) MUST be a multiple of 8.
func ones(b []byte) int64 {
	n := 0
	for ; len(b) >= 8; b = b[8:] {
		n += bits.OnesCount64(binary.LittleEndian.Uint64(b))
	}
	return int64(n)
}
