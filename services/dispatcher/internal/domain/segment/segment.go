// Package segment is the codec of one committed batch of the log: a directory that is read without the bodies (partition hash and
// size of each message) and one compressed body that holds the frames.
package segment

import "postrider.dev/services/dispatcher/internal/domain/message"

// Directory is what a window needs of a segment: 12 bytes a message. It is immutable and shared.
type Directory struct {
	Base   message.Offset
	Hashes []uint64 // partition hash of each message, in offset order
	Sizes  []uint32 // bytes of each frame, uncompressed
	At     int64    // when it was committed, by the database's clock, in microseconds since the Unix epoch
}

// Len is the number of messages.
func (d Directory) Len() int { return len(d.Hashes) }

// End is the offset after the last message.
func (d Directory) End() message.Offset { return d.Base + message.Offset(len(d.Hashes)) }

// Frame is one message ready to be written: its partition hash and its encoded bytes (AppendFrame). Callers encode their own, so that
// the group commit only concatenates and compresses.
type Frame struct {
	Hash  uint64
	Bytes []byte
}

// Codec says how a body is stored.
type Codec int16

// The codecs. They are written in the database and never change their meaning.
const (
	CodecRaw  Codec = 0 // frames one after the other
	CodecZstd Codec = 1 // the same as one zstd frame
)

// Encoded is the columns of a segment row.
type Encoded struct {
	Count      int
	Codec      Codec
	Partitions []byte // Count x 8-byte hash, big endian, so that position(hash in partitions) finds it
	Sizes      []byte // Count uvarints
	Body       []byte
}
