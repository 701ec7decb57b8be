package window

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrCorrupt says that rows are not what this code wrote, or do not fit together.
var ErrCorrupt = errors.New("corrupt group-shard")

// Entry is one open message of a lease as its row keeps it. The hash makes every decision possible without reading directories.
type Entry struct {
	Offset Offset
	Hash   uint64
	Size   uint32
}

const (
	entriesVersion = 0x10
	entriesAlone   = 0x01 // the lease was granted for one message only
)

// EncodeEntries appends the entries column of a lease: a byte of version and flags, then for each entry, ascending by offset, the
// distance to the one before (lowest bit: another hash than the one before follows in eight bytes) and the size.
func EncodeEntries(dst []byte, alone bool, entries []Entry) []byte {
	flags := byte(entriesVersion)
	if alone {
		flags |= entriesAlone
	}
	dst = append(dst, flags)
	var last Entry
	for i, e := range entries {
		dst = appendEntry(dst, e, last, i == 0)
		last = e
	}
	return dst
}

func appendEntry(dst []byte, e, last Entry, first bool) []byte {
	distance := uint64(e.Offset-last.Offset) << 1
	if first || e.Hash != last.Hash {
		dst = binary.AppendUvarint(dst, distance|1)
		dst = binary.BigEndian.AppendUint64(dst, e.Hash)
	} else {
		dst = binary.AppendUvarint(dst, distance)
	}
	return binary.AppendUvarint(dst, uint64(e.Size))
}

// DecodeEntries reads what EncodeEntries wrote. It allocates no more than the input's length warrants.
func DecodeEntries(b []byte) (alone bool, entries []Entry, err error) {
	if len(b) == 0 || b[0]&^entriesAlone != entriesVersion {
		return false, nil, fmt.Errorf("lease entries: %w", ErrCorrupt)
	}
	alone, b = b[0]&entriesAlone != 0, b[1:]
	entries = make([]Entry, 0, min(len(b)/2, MaxLeasedMessages))
	var last Entry
	for len(b) > 0 {
		e := last
		distance, n := binary.Uvarint(b)
		if n <= 0 || len(entries) == MaxLeasedMessages {
			return false, nil, fmt.Errorf("lease entries: %w", ErrCorrupt)
		}
		b = b[n:]
		if distance&1 != 0 {
			if len(b) < 8 {
				return false, nil, fmt.Errorf("lease entries: %w", ErrCorrupt)
			}
			e.Hash, b = binary.BigEndian.Uint64(b), b[8:]
		}
		size, n := binary.Uvarint(b)
		e.Offset += Offset(distance >> 1)
		if n <= 0 || size > 1<<32-1 || e.Offset < last.Offset || len(entries) > 0 && e.Offset == last.Offset || e.Offset > maxOffset {
			return false, nil, fmt.Errorf("lease entries: %w", ErrCorrupt)
		}
		e.Size, b = uint32(size), b[n:]
		entries, last = append(entries, e), e
	}
	return alone, entries, nil
}

// maxOffset keeps the arithmetic of offsets far from overflow.
const maxOffset Offset = 1 << 61
