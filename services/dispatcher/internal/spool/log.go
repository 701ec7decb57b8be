package spool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"go.uber.org/zap"
)

// Errors of Append.
var (
	// ErrFull says that the record would pass MaxBytes. Nothing was stored.
	ErrFull = errors.New("the spool is full")
	// ErrNotStored says that the disk refused. The record is not in the log and never will be.
	ErrNotStored = errors.New("the spool could not store the record")
	// ErrUncertain says that the disk failed so that nobody knows whether the record comes back at the next start.
	ErrUncertain = errors.New("whether the spool stored the record is unknown")
	// ErrClosed says that the log has ended. Nothing was stored.
	ErrClosed = errors.New("the spool is closed")
)

// Entry is one record.
type Entry struct {
	Seq     uint64
	Payload []byte
}

// Options of a Log.
type Options struct {
	// MaxBytes bounds the files together.
	MaxBytes int64
	// FileBytes is the size from which on a new file is begun; 0: a 32nd of MaxBytes, 1 MiB to 32 MiB.
	FileBytes int64
	Log       *zap.Logger
}

const (
	minFile = 1 << 20
	maxFile = 32 << 20
	// batchBytes bounds what is written at once, unless one record alone is larger.
	batchBytes = 8 << 20
)

// Log is an open spool. Run drives it.
type Log struct {
	fs   FS
	opt  Options
	lock io.Closer
	id   ID
	salt salt
	wake chan struct{}

	io      sync.Mutex // guards writing: who holds it may change files, and the next four
	current *file      // nil: the next batch begins a new file
	acked   uint64     // the last sequence number that was acknowledged
	marked  uint64     // what the mark on disk says
	closed  bool

	mu      sync.Mutex // guards the rest; taken after io
	pending []waiting
	files   []*file // by base; the current one is the last
	next    uint64  // sequence number of the next record
	ended   bool
	stats   Stats
	cursor  cursor
}

// waiting is a record that is not written yet.
type waiting struct {
	Entry

	done func(seq uint64, err error)
}

// file is one file of records.
type file struct {
	base    uint64
	last    uint64 // the highest sequence number that is good in it, 0 if there is none
	f       File
	good    int64 // everything below it is fsynced; guarded by Log.mu
	size    int64 // on disk; guarded by Log.mu
	records int   // good ones, drained ones too; guarded by Log.mu
	damage  int   // stretches that cannot be read; guarded by Log.mu
}

// Stats says what a Log holds.
type Stats struct {
	// Bytes are on disk, drained records of files that hold others too; MaxBytes is their bound.
	Bytes, MaxBytes int64
	// Records wait to be drained.
	Records int
	// TornBytes were cut off at the start: the end of a batch nobody was told about.
	TornBytes int64
	// Damage counts stretches of acknowledged bytes that could not be read, DamagedFiles the files kept because of it, those of earlier runs too.
	Damage, DamagedFiles int
	// Failures counts writes and fsyncs that failed.
	Failures int
}

// Open takes the folder and recovers what is in it. visit is called for each record that is not drained, in order; its payload MUST NOT be kept.
func Open(fs FS, opt Options, visit func(Entry) error) (*Log, error) {
	if opt.FileBytes == 0 {
		opt.FileBytes = min(max(opt.MaxBytes/32, minFile), maxFile)
	}
	lock, err := fs.Lock(lockName)
	if err != nil {
		return nil, err
	}
	l := &Log{fs: fs, opt: opt, lock: lock, wake: make(chan struct{}, 1)}
	l.stats.MaxBytes = opt.MaxBytes
	if err := l.recover(visit); err != nil {
		for _, f := range l.files {
			_ = f.f.Close() // nothing was written
		}
		return nil, errors.Join(err, lock.Close())
	}
	return l, nil
}

// ID names the spool.
func (l *Log) ID() ID { return l.id }

// MarkedUpTo is the last sequence number that the mark on disk calls drained.
func (l *Log) MarkedUpTo() uint64 {
	l.io.Lock()
	defer l.io.Unlock()
	return l.marked
}

// Stats returns what the log holds now.
func (l *Log) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// Append queues a record and returns its sequence number; records get into the log in the order of the calls. done is called exactly once, from Run's
// goroutine, and MUST NOT block: with nil when the record is durable, or an error matching one of those above. An error of Append itself is ErrFull or
// ErrClosed, and done is not called. The payload MUST NOT be changed until then.
func (l *Log) Append(payload []byte, done func(seq uint64, err error)) (uint64, error) {
	if len(payload) == 0 || len(payload) > MaxPayload {
		return 0, fmt.Errorf("record of %d bytes: %w", len(payload), ErrFull)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return 0, ErrClosed
	}
	// A batch of its own may begin a file.
	size := int64(recordHeader + len(payload))
	if l.stats.Bytes+size+headerSize > l.opt.MaxBytes {
		return 0, ErrFull
	}
	l.stats.Bytes += size
	seq := l.next
	l.next++
	l.pending = append(l.pending, waiting{Entry{seq, payload}, done})
	if len(l.pending) == 1 {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return seq, nil
}

// Run writes until ctx ends, then writes what was queued before, and refuses what comes later.
func (l *Log) Run(ctx context.Context) error {
	for {
		select {
		case <-l.wake:
			l.writeAll()
		case <-ctx.Done():
			l.mu.Lock()
			l.ended = true
			l.mu.Unlock()
			l.writeAll()
			return nil
		}
	}
}

func (l *Log) writeAll() {
	for {
		batch := l.take()
		if len(batch) == 0 {
			return
		}
		err := l.commit(batch)
		for _, w := range batch {
			w.done(w.Seq, err)
		}
	}
}

// take returns what is written together.
func (l *Log) take() []waiting {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, bytes := 0, 0
	for n < len(l.pending) {
		bytes += recordHeader + len(l.pending[n].Payload)
		if n > 0 && bytes > batchBytes {
			break
		}
		n++
	}
	batch := l.pending[:n:n]
	if l.pending = l.pending[n:]; len(l.pending) == 0 {
		l.pending = nil
	}
	return batch
}

// Close gives the folder back. Run MUST have returned.
func (l *Log) Close() error {
	l.io.Lock()
	defer l.io.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	l.mu.Lock()
	files := l.files
	l.ended = true
	l.mu.Unlock()
	var errs []error
	if l.acked > l.marked { // so that what is there is known to be good
		errs = append(errs, l.writeMark(l.marked))
	}
	for _, f := range files {
		errs = append(errs, f.f.Close())
	}
	return errors.Join(append(errs, l.lock.Close())...)
}
