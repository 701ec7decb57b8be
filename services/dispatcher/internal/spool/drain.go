package spool

import (
	"errors"
	"fmt"

	"go.uber.org/zap"
)

// cursor is where the next record to be read is.
type cursor struct {
	after uint64 // the sequence number before it
	base  uint64 // of the file
	at    int64
}

// Read returns records behind the sequence number after, in order: at most records of them, and as many bytes, but one if there is any. A place that
// cannot be read is damage, told and counted like at the start, and what is behind it follows.
func (l *Log) Read(after uint64, records, bytes int) ([]Entry, error) {
	var out []Entry
	for len(out) < records && bytes > 0 {
		f, from, to := l.place(after)
		if f == nil {
			return out, nil
		}
		r := &reader{f: f.f, end: to, salt: l.salt}
		h, payload, next, err := r.record(from)
		for err == nil && len(out) < records && (bytes > 0 || len(out) == 0) {
			if h.seq > after {
				out = append(out, Entry{h.seq, append([]byte(nil), payload...)})
				bytes -= len(payload)
				after = h.seq
			}
			from = next
			h, payload, next, err = r.record(from)
		}
		if from < to && errors.Is(err, errBad) {
			from, err = l.damaged(r, f, from)
		}
		if err != nil && !errors.Is(err, errBad) {
			return nil, err
		}
		l.mu.Lock()
		l.cursor = cursor{after: after, base: f.base, at: from}
		l.mu.Unlock()
	}
	return out, nil
}

// place finds where the records behind a sequence number begin.
func (l *Log) place(after uint64) (f *file, from, to int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.files {
		if f.last <= after {
			continue
		}
		from := int64(headerSize)
		if l.cursor.after == after && l.cursor.base == f.base {
			from = l.cursor.at
		}
		if from >= f.good { // what was to come is damaged
			continue
		}
		return f, from, f.good
	}
	return nil, 0, 0
}

func (l *Log) damaged(r *reader, f *file, at int64) (int64, error) {
	next, err := r.resync(at)
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	known := f.damage > 0
	if !known {
		f.damage++
		l.stats.Damage++
	}
	l.mu.Unlock()
	if !known {
		l.opt.Log.Error("the spool lost acknowledged bytes: what is behind them is kept", zap.String("file", fileName(f.base)),
			zap.Int64("from", at), zap.Int64("to", next))
	}
	return next, nil
}

// Drained notes, durably, that every record up to the sequence number needs no more work, and removes the files that hold no other. After an error the note
// may be there or not; the records may come again at the next start.
func (l *Log) Drained(seq uint64, records int) error {
	l.io.Lock()
	defer l.io.Unlock()
	if l.closed {
		return ErrClosed
	}
	if err := l.writeMark(seq); err != nil {
		return err
	}
	l.mu.Lock()
	l.stats.Records -= records
	l.mu.Unlock()
	if l.current != nil && l.current.last <= seq && l.current.records > 0 {
		l.current = nil
	}
	return l.dropDrained(l.current)
}

// writeMark replaces the mark. io MUST be held, or the log not yet shared.
func (l *Log) writeMark(drained uint64) error {
	l.acked = max(l.acked, drained)
	if err := l.replaceMark(mark{id: l.id, salt: l.salt, drained: drained, acked: l.acked}); err != nil {
		return fmt.Errorf("write the spool's mark: %w", err)
	}
	l.marked = drained
	l.keepSpare()
	return nil
}

// replaceMark writes into the spare, whose place on the disk is taken already: on a disk that the spool itself has filled, nothing could be removed without
// a mark, so the mark must not need room.
func (l *Log) replaceMark(m mark) error {
	f, err := l.spare()
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(m.append(nil), 0); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, l.fs.Remove(markTemp)) // after a failed fsync a file is not to be trusted again
	}
	if err := l.fs.Rename(markTemp, markName); err != nil {
		return err
	}
	return l.fs.SyncDir()
}

// spare opens the file of the next mark: the one that was kept, one that a crash left, or a new one.
func (l *Log) spare() (File, error) {
	if f, err := l.fs.Open(markTemp); err == nil {
		return f, nil
	}
	return l.fs.Create(markTemp)
}

// keepSpare takes the place of the next mark, as long as the one of the mark before is free. Without it the next mark needs room, that is all.
func (l *Log) keepSpare() {
	f, err := l.spare()
	if err != nil {
		return
	}
	_, err = f.WriteAt(make([]byte, markSize), 0)
	if errors.Join(err, f.Close()) != nil {
		_ = l.fs.Remove(markTemp) // a part of it is of no use
	}
}

// dropDrained removes the files without a record to come; a damaged one is kept under another name. That a removed file comes back after a crash harms
// nothing: the mark is beyond it.
func (l *Log) dropDrained(current *file) error {
	l.mu.Lock()
	var gone []*file
	for _, f := range l.files { // the oldest only: the header of a later one may void what is at the end of an earlier one
		if f == current || f.last > l.marked {
			break
		}
		gone = append(gone, f)
	}
	for _, f := range gone {
		l.forget(f)
		if f.damage > 0 {
			l.stats.DamagedFiles++
		}
	}
	l.mu.Unlock()
	var errs []error
	for _, f := range gone {
		errs = append(errs, f.f.Close())
		name := fileName(f.base)
		if f.damage > 0 {
			errs = append(errs, l.fs.Rename(name, name+damaged))
		} else {
			errs = append(errs, l.fs.Remove(name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove drained spool files: %w", err)
	}
	return nil
}
