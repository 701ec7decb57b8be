package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Bounds of a segment. Build refuses more, and decoders believe no more.
const (
	MaxMessages   = 1 << 16
	MaxFrameBytes = 17 << 20  // the largest message, its names and headers
	MaxBodyBytes  = 128 << 20 // of all frames, uncompressed
	compressFrom  = 512       // smaller bodies are kept raw: the frame header would eat the gain
	probeBytes    = 8 << 10   // of a large body are compressed first, to see whether the rest is worth it
)

// ErrTooLarge says that frames do not fit one segment.
var ErrTooLarge = errors.New("segment too large")

// Encoder builds segments. It is safe for concurrent use and keeps its buffers.
type Encoder struct {
	zstd *zstd.Encoder
	bufs sync.Pool // *scratch
}

type scratch struct{ plain, packed []byte }

// NewEncoder makes an Encoder that compresses at most parallel segments at the same moment.
func NewEncoder(parallel int) (*Encoder, error) {
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(parallel),
		zstd.WithEncoderCRC(true), zstd.WithLowerEncoderMem(true), zstd.WithSingleSegment(true))
	if err != nil {
		return nil, fmt.Errorf("make zstd encoder: %w", err)
	}
	return &Encoder{zstd: z}, nil
}

// Build makes the columns of a segment of these frames, in this order, and the directory of the same content for Base 0. The body is compressed where that
// is worth it. The result shares nothing with frames.
func (e *Encoder) Build(frames []Frame) (Encoded, Directory, error) { return e.build(frames, e.body) }

// BuildRaw is Build without compression.
func (e *Encoder) BuildRaw(frames []Frame) (Encoded, Directory, error) { return e.build(frames, raw) }

func raw(frames []Frame, total int) (Codec, []byte) {
	return CodecRaw, join(make([]byte, 0, total), frames)
}

func (e *Encoder) build(frames []Frame, body func([]Frame, int) (Codec, []byte)) (Encoded, Directory, error) {
	total := 0
	for i := range frames {
		if len(frames[i].Bytes) > MaxFrameBytes {
			return Encoded{}, Directory{}, fmt.Errorf("frame %d of %d bytes: %w", i, len(frames[i].Bytes), ErrTooLarge)
		}
		total += len(frames[i].Bytes)
	}
	if len(frames) > MaxMessages || total > MaxBodyBytes {
		return Encoded{}, Directory{}, fmt.Errorf("%d frames of %d bytes: %w", len(frames), total, ErrTooLarge)
	}
	dir := Directory{Hashes: make([]uint64, len(frames)), Sizes: make([]uint32, len(frames))}
	columns := make([]byte, 8*len(frames), (8+3)*len(frames)) // most sizes are two bytes, few need more than three
	for i := range frames {
		dir.Hashes[i], dir.Sizes[i] = frames[i].Hash, uint32(len(frames[i].Bytes))
		binary.BigEndian.PutUint64(columns[8*i:], frames[i].Hash)
		columns = binary.AppendUvarint(columns, uint64(len(frames[i].Bytes)))
	}
	out := Encoded{Count: len(frames), Partitions: columns[: 8*len(frames) : 8*len(frames)], Sizes: columns[8*len(frames):]}
	out.Codec, out.Body = body(frames, total)
	return out, dir, nil
}

func (e *Encoder) body(frames []Frame, total int) (Codec, []byte) {
	if total < compressFrom {
		return raw(frames, total)
	}
	s, ok := e.bufs.Get().(*scratch)
	if !ok {
		s = new(scratch)
	}
	defer e.bufs.Put(s)
	s.plain = join(slices.Grow(s.plain[:0], total), frames)
	if total >= 4*probeBytes {
		s.packed = e.zstd.EncodeAll(s.plain[:probeBytes], s.packed[:0])
		if poor(len(s.packed), probeBytes) {
			return CodecRaw, bytes.Clone(s.plain)
		}
	}
	s.packed = e.zstd.EncodeAll(s.plain, slices.Grow(s.packed[:0], total))
	if poor(len(s.packed), total) {
		return CodecRaw, bytes.Clone(s.plain)
	}
	return CodecZstd, bytes.Clone(s.packed)
}

// poor tells that compressing saved less than a sixteenth, which is not worth decompressing at every read.
func poor(packed, plain int) bool { return packed > plain-plain/16 }

func join(dst []byte, frames []Frame) []byte {
	for i := range frames {
		dst = append(dst, frames[i].Bytes...)
	}
	return dst
}
