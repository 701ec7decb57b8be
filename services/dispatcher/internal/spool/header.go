package spool

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// ID names a spool for ever: the folder gets it when it is first used.
type ID [8]byte

const (
	fileMagic  = "PRspool1"
	markMagic  = "PRmark01"
	headerSize = 48
	markSize   = 48

	suffix     = ".spool"
	damaged    = ".damaged"
	markName   = "mark"
	markTemp   = "mark.new"
	asideTemp  = "aside.new"
	lockName   = "LOCK"
	nameDigits = 20
)

// fileHeader is how a file begins. Sequence numbers between acked and base belong to nothing: their batch failed, whatever the disk has of it.
type fileHeader struct {
	id    ID
	salt  salt
	base  uint64 // the first sequence number that may be in it
	acked uint64 // the last one that was acknowledged before
}

func (h fileHeader) append(dst []byte) []byte {
	return appendBlock(dst, fileMagic, h.id, h.salt, h.base, h.acked)
}

func parseFileHeader(b []byte) (h fileHeader, ok bool) {
	h.id, h.salt, h.base, h.acked, ok = parseBlock(b, fileMagic)
	return h, ok
}

// mark is what the file of that name says.
type mark struct {
	id      ID
	salt    salt
	drained uint64 // every record up to it needs no more work
	acked   uint64 // the last sequence number that was acknowledged when the mark was written
}

func (m mark) append(dst []byte) []byte {
	return appendBlock(dst, markMagic, m.id, m.salt, m.drained, m.acked)
}

func parseMark(b []byte) (m mark, ok bool) {
	m.id, m.salt, m.drained, m.acked, ok = parseBlock(b, markMagic)
	return m, ok && len(b) == markSize
}

func appendBlock(dst []byte, magic string, id ID, s salt, x, y uint64) []byte {
	start := len(dst)
	dst = append(dst, magic...)
	dst = append(dst, id[:]...)
	dst = append(dst, s[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, x)
	dst = binary.LittleEndian.AppendUint64(dst, y)
	return binary.LittleEndian.AppendUint64(dst, uint64(salt{}.checksum(dst[start:])))
}

func parseBlock(b []byte, magic string) (id ID, s salt, x, y uint64, ok bool) {
	const size = headerSize
	if len(b) < size || string(b[:8]) != magic || uint64(salt{}.checksum(b[:size-8])) != binary.LittleEndian.Uint64(b[size-8:]) {
		return id, s, 0, 0, false
	}
	copy(id[:], b[8:])
	copy(s[:], b[16:])
	return id, s, binary.LittleEndian.Uint64(b[24:]), binary.LittleEndian.Uint64(b[32:]), true
}

func fileName(base uint64) string { return fmt.Sprintf("%0*d%s", nameDigits, base, suffix) }

// baseOf reads a file's name; false if it is none of ours.
func baseOf(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != nameDigits {
		return 0, false
	}
	base, err := strconv.ParseUint(digits, 10, 64)
	return base, err == nil
}
