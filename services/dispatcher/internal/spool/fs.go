package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// FS is one folder. Names are plain file names in it. Implementations MUST be safe for concurrent use.
type FS interface {
	// Lock takes the folder for this process, or returns an error matching ErrLocked at once.
	Lock(name string) (io.Closer, error)
	// List names the files, in any order.
	List() ([]string, error)
	// Create makes a file that does not exist yet. It may be gone after a crash until SyncDir returned nil.
	Create(name string) (File, error)
	// Open opens a file for reading and writing.
	Open(name string) (File, error)
	// Rename gives a file another name, replacing what has it; durable after SyncDir.
	Rename(from, to string) error
	// Remove removes a file; durable after SyncDir.
	Remove(name string) error
	// SyncDir makes what was created, renamed and removed durable.
	SyncDir() error
}

// File is one open file.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Size is the present length.
	Size() (int64, error)
	// Truncate cuts the file.
	Truncate(size int64) error
	// Sync makes content and length durable. After an error the state on disk is unknown, and a later nil means nothing for what was written before.
	Sync() error
}

// ErrLocked says that another process has the folder.
var ErrLocked = errors.New("the folder is in use by another process")

// Folder returns the folder at path, made if need be.
func Folder(path string) (FS, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("spool folder: %w", err)
	}
	return folder(path), nil
}

type folder string

func (f folder) at(name string) string { return filepath.Join(string(f), name) }

func (f folder) Lock(name string) (io.Closer, error) {
	file, err := os.OpenFile(f.at(name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close() // nothing was written
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrLocked
		}
		return nil, fmt.Errorf("lock %s: %w", f, err)
	}
	return file, nil
}

func (f folder) List() ([]string, error) {
	entries, err := os.ReadDir(string(f))
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

func (f folder) Create(name string) (File, error) {
	file, err := os.OpenFile(f.at(name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return osFile{file}, nil
}

func (f folder) Open(name string) (File, error) {
	file, err := os.OpenFile(f.at(name), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return osFile{file}, nil
}

func (f folder) Rename(from, to string) error { return os.Rename(f.at(from), f.at(to)) }

func (f folder) Remove(name string) error { return os.Remove(f.at(name)) }

func (f folder) SyncDir() error {
	dir, err := os.Open(string(f))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

type osFile struct{ *os.File }

func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
