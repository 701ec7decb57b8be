package spool

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
)

const (
	recordMagic  = 0x52e7d15c
	recordHeader = 24
	// MaxPayload is the most one record holds: a request of 32 MiB with everything around it.
	MaxPayload = 48 << 20
)

// errBad says that there is no whole record at a place.
var errBad = errors.New("no whole record")

// salt is mixed into every checksum of a spool.
type salt [8]byte

// checksums are CRC32C. The table is made once by the library.
func (s salt) checksum(parts ...[]byte) uint32 {
	sum := crc32.Checksum(s[:], crc32.MakeTable(crc32.Castagnoli))
	for _, p := range parts {
		sum = crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), p)
	}
	return sum
}

// appendRecord appends a record to the bytes of a batch that begins at the offset batch of its file.
func appendRecord(dst []byte, s salt, seq uint64, batch int64, payload []byte) []byte {
	start := len(dst)
	dst = binary.LittleEndian.AppendUint32(dst, recordMagic)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(payload)))
	dst = binary.LittleEndian.AppendUint64(dst, seq)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(batch))
	sum := s.checksum(dst[start:], payload)
	dst = binary.LittleEndian.AppendUint32(dst, sum)
	return append(dst, payload...)
}

// head is a record's header.
type head struct {
	length int
	seq    uint64
	batch  int64
	sum    uint32
}

// parseHead reads a header, and says whether it can be one. b MUST have recordHeader bytes.
func parseHead(b []byte) (head, bool) {
	h := head{
		length: int(binary.LittleEndian.Uint32(b[4:])), seq: binary.LittleEndian.Uint64(b[8:]),
		batch: int64(binary.LittleEndian.Uint32(b[16:])), sum: binary.LittleEndian.Uint32(b[20:]),
	}
	return h, binary.LittleEndian.Uint32(b) == recordMagic && h.length > 0 && h.length <= MaxPayload
}

// parseRecord reads the record at the start of b. The payload aliases b. It returns errBad for anything that appendRecord did not write with this salt.
func parseRecord(b []byte, s salt) (h head, payload []byte, err error) {
	if len(b) < recordHeader {
		return head{}, nil, errBad
	}
	h, ok := parseHead(b)
	if !ok || len(b)-recordHeader < h.length {
		return head{}, nil, errBad
	}
	payload = b[recordHeader : recordHeader+h.length]
	if s.checksum(b[:recordHeader-4], payload) != h.sum {
		return head{}, nil, errBad
	}
	return h, payload, nil
}
