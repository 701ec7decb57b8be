package spool

import (
	"errors"
	"fmt"
)

// SetAside keeps a record that nobody can use in a file of its own, durably, with the damaged ones. To set one aside again changes nothing.
func (l *Log) SetAside(e Entry) error {
	l.io.Lock()
	defer l.io.Unlock()
	if l.closed {
		return ErrClosed
	}
	name := fmt.Sprintf("%020d.record%s", e.Seq, damaged)
	if f, err := l.fs.Open(name); err == nil { // whole, since it was renamed when it was durable
		return f.Close()
	}
	f, err := l.fs.Create(asideTemp)
	if err != nil { // one that was left by a crash
		_ = l.fs.Remove(asideTemp)
		if f, err = l.fs.Create(asideTemp); err != nil {
			return fmt.Errorf("set a record aside: %w", err)
		}
	}
	if _, err = f.WriteAt(e.Payload, 0); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = l.fs.Rename(asideTemp, name)
	}
	if err == nil {
		err = l.fs.SyncDir()
	}
	if err != nil {
		return fmt.Errorf("set a record aside: %w", err)
	}
	l.mu.Lock()
	l.stats.DamagedFiles++
	l.mu.Unlock()
	return nil
}
