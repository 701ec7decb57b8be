// Package spooltest is a folder in memory that behaves like a disk at its worst: it forgets what was not fsynced when Crash is called, or keeps any part of
// it, and it can be full, write short, and fail to fsync.
package spooltest

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"

	"postrider.dev/services/dispatcher/internal/spool"
)

// ErrSync is what a failing fsync returns.
var ErrSync = errors.New("input/output error")

// Disk is a spool.FS in memory. The zero value is not ready; use New.
type Disk struct {
	mu      sync.Mutex // guards everything, the files too
	names   map[string]*inode
	durable map[string]*inode
	ops     []func(map[string]*inode) // on names, since the last SyncDir
	locked  bool
	room    int64 // bytes by which files may still grow; below 0: no bound
	syncs   int   // fsyncs so far
	fail    func(n int) bool
}

type inode struct {
	now    []byte
	synced []byte
	writes []write // since the last fsync
	lost   []write // by an fsync that failed: no later one brings them back
}

// write is one change of a file: bytes at an offset, or, with data nil, a new length.
type write struct {
	off  int64
	data []byte
}

// New returns an empty disk without bounds.
func New() *Disk {
	return &Disk{names: map[string]*inode{}, durable: map[string]*inode{}, room: -1}
}

// SetRoom bounds the bytes by which files may still grow: a write beyond it is cut short and fails with ENOSPC. What is cut or removed is room again. Less
// than 0 means no bound.
func (d *Disk) SetRoom(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.room = bytes
}

// FailSync makes the fsyncs fail for which fail, given their number, returns true. A file whose fsync failed has lost what was not synced, and calls it
// clean. nil ends it.
func (d *Disk) FailSync(fail func(n int) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = fail
}

// Syncs returns how many fsyncs there were.
func (d *Disk) Syncs() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.syncs
}

// Crash returns the disk as it may be found after the machine lost its power: what was synced is there, and of the rest whatever keep decides. nil keeps
// nothing. The old disk may be used on, without effect.
func (d *Disk) Crash(keep *rand.Rand) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	after := New()
	names := clone(d.durable)
	if keep != nil {
		for _, op := range d.ops[:keep.IntN(len(d.ops)+1)] {
			op(names)
		}
	}
	for name, node := range names {
		content := node.survive(keep)
		fresh := &inode{now: content, synced: append([]byte(nil), content...)}
		after.names[name], after.durable[name] = fresh, fresh
	}
	return after
}

// survive is the file's content after a crash: each write since the last fsync is there, missing, cut short, or spoiled.
func (n *inode) survive(keep *rand.Rand) []byte {
	content := append([]byte(nil), n.synced...)
	if keep == nil {
		return content
	}
	for _, w := range append(append([]write(nil), n.lost...), n.writes...) {
		if w.data == nil {
			if keep.IntN(2) == 0 {
				content = resize(content, w.off)
			}
			continue
		}
		data := append([]byte(nil), w.data...)
		switch keep.IntN(4) {
		case 0:
			continue
		case 1:
			data = data[:keep.IntN(len(data)+1)]
		case 2: // the length got there before the pages
			from := keep.IntN(len(data) + 1)
			clear(data[from : from+keep.IntN(len(data)-from+1)])
		}
		content = put(content, w.off, data)
	}
	return content
}

// Spoil changes bytes of a file for good, as a bad sector does.
func (d *Disk) Spoil(name string, change func([]byte) []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	node := d.names[name]
	node.now = change(node.now)
	node.synced = append([]byte(nil), node.now...)
	node.writes, node.lost = nil, nil
}

// Lock implements spool.FS.
func (d *Disk) Lock(string) (io.Closer, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.locked {
		return nil, spool.ErrLocked
	}
	d.locked = true
	return unlock{d}, nil
}

type unlock struct{ d *Disk }

func (u unlock) Close() error {
	u.d.mu.Lock()
	defer u.d.mu.Unlock()
	u.d.locked = false
	return nil
}

// List implements spool.FS.
func (d *Disk) List() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	names := make([]string, 0, len(d.names))
	for name := range d.names {
		names = append(names, name)
	}
	return names, nil
}

func (d *Disk) do(op func(map[string]*inode)) {
	op(d.names)
	d.ops = append(d.ops, op)
}

// free gives the room of a file that is gone, if there was one, back.
func (d *Disk) free(node *inode) {
	if node != nil && d.room >= 0 {
		d.room += int64(len(node.now))
	}
}

// Create implements spool.FS.
func (d *Disk) Create(name string) (spool.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] != nil {
		return nil, os.ErrExist
	}
	node := &inode{}
	d.do(func(names map[string]*inode) { names[name] = node })
	return &handle{d, node}, nil
}

// Open implements spool.FS.
func (d *Disk) Open(name string) (spool.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	node := d.names[name]
	if node == nil {
		return nil, os.ErrNotExist
	}
	return &handle{d, node}, nil
}

// Rename implements spool.FS.
func (d *Disk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[from] == nil {
		return os.ErrNotExist
	}
	d.free(d.names[to])
	d.do(func(names map[string]*inode) {
		names[to] = names[from]
		delete(names, from)
	})
	return nil
}

// Remove implements spool.FS.
func (d *Disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] == nil {
		return os.ErrNotExist
	}
	d.free(d.names[name])
	d.do(func(names map[string]*inode) { delete(names, name) })
	return nil
}

// SyncDir implements spool.FS.
func (d *Disk) SyncDir() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.syncs++
	if d.fail != nil && d.fail(d.syncs) {
		return ErrSync
	}
	d.durable, d.ops = clone(d.names), nil
	return nil
}

type handle struct {
	d    *Disk
	node *inode
}

func (h *handle) ReadAt(b []byte, off int64) (int, error) {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if off >= int64(len(h.node.now)) {
		return 0, io.EOF
	}
	n := copy(b, h.node.now[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (h *handle) WriteAt(b []byte, off int64) (int, error) {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	var err error
	if h.d.room >= 0 {
		size := int64(len(h.node.now))
		if grows := off + int64(len(b)) - size; grows > h.d.room {
			b, err = b[:max(0, size+h.d.room-off)], syscall.ENOSPC
		}
		h.d.room -= max(0, off+int64(len(b))-size)
	}
	h.node.now = put(h.node.now, off, b)
	h.node.writes = append(h.node.writes, write{off, append([]byte{}, b...)})
	return len(b), err
}

func (h *handle) Size() (int64, error) {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	return int64(len(h.node.now)), nil
}

func (h *handle) Truncate(size int64) error {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	if h.d.room >= 0 {
		h.d.room += int64(len(h.node.now)) - size
	}
	h.node.now = resize(h.node.now, size)
	h.node.writes = append(h.node.writes, write{off: size})
	return nil
}

func (h *handle) Sync() error {
	h.d.mu.Lock()
	defer h.d.mu.Unlock()
	h.d.syncs++
	writes := h.node.writes
	h.node.writes = nil
	if h.d.fail != nil && h.d.fail(h.d.syncs) { // the pages count as clean now, whatever became of them
		h.node.lost = append(h.node.lost, writes...)
		return ErrSync
	}
	for _, w := range writes {
		if w.data == nil {
			h.node.synced = resize(h.node.synced, w.off)
		} else {
			h.node.synced = put(h.node.synced, w.off, w.data)
		}
	}
	return nil
}

func (h *handle) Close() error { return nil }

func put(content []byte, off int64, data []byte) []byte {
	if end := off + int64(len(data)); end > int64(len(content)) {
		content = resize(content, end)
	}
	copy(content[off:], data)
	return content
}

func resize(content []byte, size int64) []byte {
	if size <= int64(len(content)) {
		return content[:size:size]
	}
	return append(content[:len(content):len(content)], make([]byte, size-int64(len(content)))...)
}

func clone(m map[string]*inode) map[string]*inode {
	out := make(map[string]*inode, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}
