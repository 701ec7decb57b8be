package spool

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.uber.org/zap"
)

// ErrDamagedMark says that nobody knows which records were drained: the mark is not there, or cannot be read.
var ErrDamagedMark = errors.New("the spool's mark is damaged; without it, what was drained would be delivered again")

// recover reads what is in the folder.
func (l *Log) recover(visit func(Entry) error) error {
	names, err := l.fs.List()
	if err != nil {
		return fmt.Errorf("list the spool: %w", err)
	}
	var bases []uint64
	for _, name := range names {
		if base, ok := baseOf(name); ok {
			bases = append(bases, base)
		}
		if strings.HasSuffix(name, damaged) {
			l.stats.DamagedFiles++
		}
	}
	slices.Sort(bases)
	if err := l.readMark(len(bases) == 0); err != nil {
		return err
	}
	heads, err := l.openAll(bases)
	if err != nil {
		return err
	}
	for i, f := range l.files {
		if err := l.scan(f, evidence(heads, i, l.acked), visit); err != nil {
			return err
		}
	}
	for _, f := range l.files {
		l.next = max(l.next, f.base)
		l.acked = max(l.acked, f.last)
	}
	l.next = max(l.next, l.acked+1)
	l.keepSpare()
	return l.dropDrained(nil)
}

// readMark reads the mark, or makes the first one in an empty folder.
func (l *Log) readMark(empty bool) error {
	f, err := l.fs.Open(markName)
	if err != nil {
		if !empty {
			return fmt.Errorf("%w: %w", ErrDamagedMark, err)
		}
		_, _ = rand.Read(l.id[:])   // never fails
		_, _ = rand.Read(l.salt[:]) // never fails
		return l.writeMark(0)
	}
	defer f.Close() //nolint:errcheck // it was only read
	b := make([]byte, markSize+1)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the spool's mark: %w", err)
	}
	m, ok := parseMark(b[:n])
	if !ok {
		return ErrDamagedMark
	}
	l.id, l.salt, l.marked, l.acked, l.next = m.id, m.salt, m.drained, max(m.acked, m.drained), 0
	return nil
}

// openAll opens the files and returns their headers; nil for one that has none.
func (l *Log) openAll(bases []uint64) ([]*fileHeader, error) {
	heads := make([]*fileHeader, len(bases))
	for i, base := range bases {
		f, err := l.fs.Open(fileName(base))
		if err != nil {
			return nil, fmt.Errorf("open a spool file: %w", err)
		}
		opened := &file{base: base, f: f}
		l.files = append(l.files, opened)
		if opened.size, err = f.Size(); err != nil {
			return nil, fmt.Errorf("open a spool file: %w", err)
		}
		l.stats.Bytes += max(opened.size, headerSize)
		b := make([]byte, headerSize)
		n, err := f.ReadAt(b, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read a spool file: %w", err)
		}
		if h, ok := parseFileHeader(b[:n]); ok && h.id == l.id && h.base == base {
			heads[i] = &h
		}
	}
	return heads, nil
}

// proof is what is known of a file from elsewhere.
type proof struct {
	acked uint64       // this sequence number was acknowledged and is in the file, if it is not below the file's base
	void  []fileHeader // of all files: what they void
	whole bool         // the file's own header can be read
}

func evidence(heads []*fileHeader, i int, marked uint64) proof {
	p := proof{whole: heads[i] != nil}
	behind := uint64(0) // no sequence number of the file reaches it
	for _, h := range heads[i+1:] {
		if h != nil && behind == 0 {
			behind = h.base
			p.acked = h.acked
		}
	}
	if behind == 0 || marked < behind {
		p.acked = max(p.acked, marked)
	}
	for _, h := range heads {
		if h != nil {
			p.void = append(p.void, *h)
		}
	}
	return p
}

// voids says that the sequence number belongs to nothing.
func (p *proof) voids(seq uint64) bool {
	return slices.ContainsFunc(p.void, func(h fileHeader) bool { return seq > h.acked && seq < h.base })
}

// scan reads one file to its end, cuts off what was never acknowledged, and counts what is damaged.
func (l *Log) scan(f *file, p proof, visit func(Entry) error) error {
	r := &reader{f: f.f, end: f.size, salt: l.salt}
	at, err := int64(headerSize), error(nil)
	if !p.whole {
		at, err = int64(0), errBad
	}
	for at < r.end {
		var h head
		var payload []byte
		var next int64
		if err == nil {
			h, payload, next, err = r.record(at)
		}
		switch {
		case errors.Is(err, errBad):
			next, torn, err := l.judge(r, f, p, at)
			if err != nil {
				return err
			}
			if torn {
				return l.cut(f, at)
			}
			at = next
		case err != nil:
			return err
		case p.voids(h.seq):
			return l.cut(f, at)
		default:
			f.last, at = h.seq, next
			f.records++
			if err := l.show(Entry{h.seq, payload}, visit); err != nil {
				return err
			}
		}
		err = nil
	}
	f.good = f.size
	if f.damage == 0 && p.misses(f) {
		l.damage(f, f.size, f.size)
	}
	return nil
}

// show tells the visitor of a record that is still to be drained.
func (l *Log) show(e Entry, visit func(Entry) error) error {
	if e.Seq <= l.marked {
		return nil
	}
	l.stats.Records++
	if err := visit(e); err != nil {
		return fmt.Errorf("record %d of the spool: %w", e.Seq, err)
	}
	return nil
}

// misses says that something that was acknowledged lies behind what was read of the file.
func (p *proof) misses(f *file) bool { return p.acked >= f.base && f.last < p.acked }

func (l *Log) damage(f *file, from, to int64) {
	f.damage++
	l.stats.Damage++
	l.opt.Log.Error("the spool lost acknowledged bytes: what is behind them is kept", zap.String("file", fileName(f.base)),
		zap.Int64("from", from), zap.Int64("to", to), zap.Uint64("after", f.last))
}

// judge decides about a place without a whole record: torn, then nothing behind it was acknowledged; or damage, then next is where the next record is.
func (l *Log) judge(r *reader, f *file, p proof, at int64) (next int64, torn bool, err error) {
	lost := p.misses(f)
	if !lost {
		if lost, err = r.begunBehind(at); err != nil {
			return 0, false, err
		}
	}
	if !lost {
		return 0, true, nil
	}
	if next, err = r.resync(at); err == nil {
		l.damage(f, at, next)
	}
	return next, false, err
}

// cut ends a file at size, durably.
func (l *Log) cut(f *file, size int64) error {
	f.good = size
	if f.size == size {
		return nil
	}
	l.stats.TornBytes += f.size - size
	l.opt.Log.Warn("the spool ends in what nobody was told about", zap.String("file", fileName(f.base)), zap.Int64("bytes", f.size-size))
	if err := f.f.Truncate(size); err != nil {
		return fmt.Errorf("cut a spool file: %w", err)
	}
	if err := f.f.Sync(); err != nil {
		return fmt.Errorf("cut a spool file: %w", err)
	}
	l.stats.Bytes -= max(f.size, headerSize) - max(size, headerSize)
	f.size = size
	return nil
}
