package spool

import (
	"errors"
	"fmt"

	"go.uber.org/zap"
)

// commit writes a batch and fsyncs it.
func (l *Log) commit(batch []waiting) error {
	l.io.Lock()
	defer l.io.Unlock()
	payload := 0
	for _, w := range batch {
		payload += recordHeader + len(w.Payload)
	}
	err := l.write(batch, payload)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.stats.Bytes -= int64(payload)
		l.stats.Failures++
		l.opt.Log.Error("the spool could not write", zap.Int("records", len(batch)), zap.Error(err))
		return err
	}
	f := l.current
	f.last, f.good = batch[len(batch)-1].Seq, f.size
	f.records += len(batch)
	l.acked = f.last
	l.stats.Records += len(batch)
	return nil
}

// write puts a batch into the current file, or a new one. After nil it is durable.
func (l *Log) write(batch []waiting, payload int) error {
	if l.closed {
		return ErrClosed
	}
	if l.current != nil && l.current.size >= l.opt.FileBytes {
		l.current = nil
	}
	fresh := l.current == nil
	if fresh {
		if err := l.begin(batch[0].Seq); err != nil {
			return fmt.Errorf("%w: %w", ErrNotStored, err) // an empty file, if anything
		}
	}
	f := l.current
	buf := make([]byte, 0, headerSize+payload)
	start := f.size
	if fresh {
		buf = l.header(f.base).append(buf)
	}
	for _, w := range batch {
		buf = appendRecord(buf, l.salt, w.Seq, start, w.Payload)
	}
	if _, err := f.f.WriteAt(buf, start); err != nil {
		return l.undo(f, start, batch, err)
	}
	if err := f.f.Sync(); err != nil {
		return l.poison(batch, err)
	}
	if fresh {
		if err := l.fs.SyncDir(); err != nil {
			return l.poison(batch, err)
		}
	}
	l.grow(f, start+int64(len(buf)))
	return nil
}

func (l *Log) header(base uint64) fileHeader {
	return fileHeader{id: l.id, salt: l.salt, base: base, acked: l.acked}
}

// begin makes a file, still empty, the current one.
func (l *Log) begin(base uint64) error {
	f, err := l.fs.Create(fileName(base))
	if err != nil {
		return fmt.Errorf("begin a spool file: %w", err)
	}
	l.current = &file{base: base, f: f}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.files = append(l.files, l.current)
	l.stats.Bytes += headerSize
	return nil
}

func (l *Log) grow(f *file, size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f.size = size
}

// undo takes back a write that failed, of which some bytes may have reached the file. If that is durable the file goes on.
func (l *Log) undo(f *file, size int64, batch []waiting, cause error) error {
	if err := f.f.Truncate(size); err != nil {
		return l.poison(batch, errors.Join(cause, err))
	}
	if err := f.f.Sync(); err != nil {
		return l.poison(batch, errors.Join(cause, err))
	}
	if size == 0 { // without its header it is no file
		l.current = nil
		l.abandon(f)
	}
	return fmt.Errorf("%w: %w", ErrNotStored, cause)
}

// abandon lets go of a file in which nothing is. If it cannot be removed, the next start does.
func (l *Log) abandon(f *file) {
	l.mu.Lock()
	l.forget(f)
	l.mu.Unlock()
	_ = f.f.Close() // nothing was written
	if err := l.fs.Remove(fileName(f.base)); err != nil {
		l.opt.Log.Warn("an empty spool file stays", zap.Error(err))
	}
}

// forget needs mu.
func (l *Log) forget(f *file) {
	for i, g := range l.files {
		if g == f {
			l.files = append(l.files[:i:i], l.files[i+1:]...)
			l.stats.Bytes -= max(f.size, headerSize)
			return
		}
	}
}

// poison gives up the current file after a failed fsync, and begins another whose header voids the batch. Only once that is durable is the batch known not
// to be stored.
func (l *Log) poison(batch []waiting, cause error) error {
	bad := l.current
	l.current = nil
	err := l.void(batch[len(batch)-1].Seq + 1)
	if bad.good == 0 { // nothing acknowledged is in it
		l.abandon(bad)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUncertain, errors.Join(cause, err))
	}
	return fmt.Errorf("%w: %w", ErrNotStored, cause)
}

// void begins a file at base and makes its header durable.
func (l *Log) void(base uint64) error {
	if err := l.begin(base); err != nil {
		return err
	}
	f := l.current
	_, err := f.f.WriteAt(l.header(base).append(nil), 0)
	if err == nil {
		err = f.f.Sync()
	}
	if err == nil {
		err = l.fs.SyncDir()
	}
	if err != nil {
		l.current = nil
		l.abandon(f)
		return fmt.Errorf("begin a spool file: %w", err)
	}
	l.grow(f, headerSize)
	l.mu.Lock()
	defer l.mu.Unlock()
	f.good = headerSize
	return nil
}
