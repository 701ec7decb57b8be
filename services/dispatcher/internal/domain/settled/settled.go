// Package settled holds which messages of one shard a group is done with, bounded whatever stays undone.
//
// Offsets are cut into chunks of 4,096. Two neighbouring chunks, the hot pair, live as bitmaps inside the group-shard's row; all
// normal traffic stays there. Outside the pair an absent chunk below means all settled, an absent chunk above means none settled;
// anything else is one row.
package settled

import "postrider.dev/services/dispatcher/internal/domain/message"

// Offset is a position in the shard's log.
type Offset = message.Offset

const (
	// ChunkLen is how many offsets one chunk covers.
	ChunkLen = 4096
	// ChunkBytes is the size of one bitmap.
	ChunkBytes = ChunkLen / 8
	// HotBytes is the size of the hot pair.
	HotBytes = 2 * ChunkBytes
	// listBelow is the number of unsettled offsets from which a bitmap is the shorter form.
	listBelow = 256
)

// ChunkNo numbers the chunks of a shard: offset / ChunkLen.
type ChunkNo int64

// Hot is the hot pair: the chunks Chunk and Chunk+1, a bit set where the offset is settled (bit i of byte i/8).
type Hot struct {
	Chunk ChunkNo
	Bits  [HotBytes]byte
}

// Encoding says how a chunk row's data is to be read.
type Encoding int16

// The encodings of a chunk row.
const (
	EncodingList   Encoding = 1 // the unsettled offsets, two bytes each, little endian, ascending, fewer than 256
	EncodingBitmap Encoding = 2 // 512 bytes, a bit set where settled
	EncodingNone   Encoding = 3 // nothing of it is settled; no data
)

// Chunk is one row outside the hot pair.
type Chunk struct {
	No       ChunkNo
	Encoding Encoding
	Data     []byte
}
