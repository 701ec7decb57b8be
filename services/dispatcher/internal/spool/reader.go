package spool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// readAhead is how much is read from a file at once.
const readAhead = 256 << 10

// reader reads records of one file below end.
type reader struct {
	f    File
	end  int64
	salt salt
	buf  []byte
	at   int64 // offset of buf
}

// bytes returns n bytes at off, which stay as they are until the next call; errBad if the file has not so many.
func (r *reader) bytes(off int64, n int) ([]byte, error) {
	if off+int64(n) > r.end {
		return nil, errBad
	}
	if off < r.at || off+int64(n) > r.at+int64(len(r.buf)) {
		size := min(int64(max(n, readAhead)), r.end-off)
		if int64(cap(r.buf)) < size {
			r.buf = make([]byte, size)
		}
		r.buf, r.at = r.buf[:size], off
		got, err := r.f.ReadAt(r.buf, off)
		if err != nil && !errors.Is(err, io.EOF) {
			r.buf = r.buf[:0]
			return nil, fmt.Errorf("read spool: %w", err)
		}
		if r.buf = r.buf[:got]; got < n {
			return nil, errBad
		}
	}
	return r.buf[off-r.at:][:n], nil
}

// record reads the record at off; errBad if there is none.
func (r *reader) record(off int64) (h head, payload []byte, next int64, err error) {
	b, err := r.bytes(off, recordHeader)
	if err != nil {
		return head{}, nil, 0, err
	}
	h, ok := parseHead(b)
	if !ok {
		return head{}, nil, 0, errBad
	}
	if b, err = r.bytes(off, recordHeader+h.length); err != nil {
		return head{}, nil, 0, err
	}
	h, payload, err = parseRecord(b, r.salt)
	return h, payload, off + recordHeader + int64(h.length), err
}

// resync finds the first whole record behind off, where there is none; r.end if there is none at all.
func (r *reader) resync(off int64) (int64, error) {
	magic := binary.LittleEndian.AppendUint32(nil, recordMagic)
	for off++; off+recordHeader <= r.end; {
		b, err := r.bytes(off, int(min(readAhead, r.end-off)))
		if err != nil {
			return 0, err
		}
		i := bytes.Index(b, magic)
		if i < 0 {
			off += int64(len(b) - len(magic) + 1)
			continue
		}
		off += int64(i)
		_, _, _, err = r.record(off)
		if err == nil {
			return off, nil
		}
		if !errors.Is(err, errBad) {
			return 0, err
		}
		off++
	}
	return r.end, nil
}

// begunBehind says whether a record behind off belongs to a batch that begins behind off: then what is at off had been fsynced.
func (r *reader) begunBehind(off int64) (bool, error) {
	at := off
	for {
		var err error
		if at, err = r.resync(at); err != nil || at >= r.end {
			return false, err
		}
		for {
			h, _, next, err := r.record(at)
			if errors.Is(err, errBad) {
				break
			}
			if err != nil || h.batch > off {
				return err == nil, err
			}
			at = next
		}
	}
}
