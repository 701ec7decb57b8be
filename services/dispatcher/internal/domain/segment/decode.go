package segment

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"postrider.dev/services/dispatcher/internal/domain/message"
)

// ErrCorrupt says that stored bytes are no segment. It is never the fault of one message: nothing of the segment can be read.
var ErrCorrupt = errors.New("corrupt segment")

// DecodeDirectory reads the two columns of a directory. It allocates no more than 12 bytes for each 8 of partitions.
func DecodeDirectory(base message.Offset, count int, partitions, sizes []byte) (Directory, error) {
	if base < 0 || count < 0 || count > MaxMessages || len(partitions) != 8*count || len(sizes) < count {
		return Directory{}, fmt.Errorf("directory at %d of %d messages: %w", base, count, ErrCorrupt)
	}
	d := Directory{Base: base, Hashes: make([]uint64, count), Sizes: make([]uint32, count)}
	total := uint64(0)
	for i := range count {
		d.Hashes[i] = binary.BigEndian.Uint64(partitions[8*i:])
		size, n := binary.Uvarint(sizes)
		if n <= 0 || size > MaxFrameBytes {
			return Directory{}, fmt.Errorf("size %d of the directory at %d: %w", i, base, ErrCorrupt)
		}
		if total += size; total > MaxBodyBytes {
			return Directory{}, fmt.Errorf("directory at %d: %w", base, ErrCorrupt)
		}
		d.Sizes[i], sizes = uint32(size), sizes[n:]
	}
	if len(sizes) != 0 {
		return Directory{}, fmt.Errorf("directory at %d: %w", base, ErrCorrupt)
	}
	return d, nil
}

// Bytes is the memory the directory takes.
func (d Directory) Bytes() int { return 12 * len(d.Hashes) }

// Body is the frames of one segment, uncompressed. It is immutable and shared.
type Body struct {
	plain  []byte
	starts []uint32
}

// Bytes is the memory the body takes.
func (b Body) Bytes() int { return len(b.plain) + 4*len(b.starts) }

// Len is the number of frames.
func (b Body) Len() int { return max(0, len(b.starts)-1) }

// Frame is the bytes of the i-th message; ok is false outside the segment. They MUST NOT be written.
func (b Body) Frame(i int) (frame []byte, ok bool) {
	if i < 0 || i >= b.Len() {
		return nil, false
	}
	return b.plain[b.starts[i]:b.starts[i+1]:b.starts[i+1]], true
}

// Message decodes the i-th frame. Its payload aliases the body.
func (b Body) Message(i int) (message.Message, error) {
	frame, ok := b.Frame(i)
	if !ok {
		return message.Message{}, fmt.Errorf("message %d of %d: %w", i, b.Len(), ErrCorrupt)
	}
	return message.ParseFrame(frame)
}

// Decoder reads bodies. It is safe for concurrent use.
type Decoder struct{ zstd *zstd.Decoder }

// NewDecoder makes a Decoder that works on at most parallel bodies at the same moment.
func NewDecoder(parallel int) (*Decoder, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(parallel), zstd.WithDecodeAllCapLimit(true),
		zstd.WithDecoderMaxMemory(MaxBodyBytes), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("make zstd decoder: %w", err)
	}
	return &Decoder{zstd: z}, nil
}

// Body decodes the body of the segment with directory d. It allocates what the directory says, whatever the bytes claim.
func (x *Decoder) Body(d Directory, codec Codec, body []byte) (Body, error) {
	starts, total := make([]uint32, len(d.Sizes)+1), uint32(0)
	for i, size := range d.Sizes {
		total += size // the directory's decoder bounds the sum far below 4 GiB
		starts[i+1] = total
	}
	switch codec {
	case CodecRaw:
		if len(body) != int(total) {
			return Body{}, fmt.Errorf("body at %d is %d bytes, its sizes say %d: %w", d.Base, len(body), total, ErrCorrupt)
		}
		return Body{plain: body, starts: starts}, nil
	case CodecZstd:
		plain, err := x.zstd.DecodeAll(body, make([]byte, 0, total))
		if err != nil || len(plain) != int(total) {
			return Body{}, fmt.Errorf("body at %d is %d bytes, its sizes say %d: %w", d.Base, len(plain), total, errors.Join(ErrCorrupt, err))
		}
		return Body{plain: plain, starts: starts}, nil
	default:
		return Body{}, fmt.Errorf("body at %d has codec %d: %w", d.Base, codec, ErrCorrupt)
	}
}

// Close frees the decoder's goroutines.
func (x *Decoder) Close() { x.zstd.Close() }
