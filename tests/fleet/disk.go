package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// Disk is what the spool of one dispatcher lies on, small enough to be filled.
//
// Where the test may mount, it is a file system of its own in memory, and a full one says ENOSPC. Where it may not, the files of the dispatcher are
// limited while the disk is "full", and a write beyond says EFBIG; that ends with the process, and what it logs meanwhile is lost.
type Disk struct {
	dir     string
	root    *os.File // of the file system; nil: there is none of its own
	process *Process
}

// diskSize is the size of such a file system.
const diskSize = "8m"

func newDisk(t testing.TB) *Disk {
	t.Helper()
	dir := t.TempDir()
	root, err := mount(t.Context(), dir)
	if err != nil {
		t.Logf("NO FILE SYSTEM FOR THE SPOOL, which needs root: %v. Instead of filling its disk, the sizes of the dispatcher's files are limited: it sees EFBIG, not ENOSPC", err)
		return &Disk{dir: dir}
	}
	t.Cleanup(func() { require.NoError(t, root.Close()) })
	return &Disk{dir: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), root.Fd()), root: root}
}

// mount makes a file system that is reached through the returned file alone, and is gone with it: also if the test is killed.
func mount(ctx context.Context, at string) (*os.File, error) {
	if out, err := exec.CommandContext(ctx, "mount", "-t", "tmpfs", "-o", "mode=0700,size="+diskSize, "tmpfs", at).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mount: %w: %s", err, out)
	}
	root, err := os.Open(at)
	out, detached := exec.CommandContext(context.WithoutCancel(ctx), "umount", "-l", at).CombinedOutput()
	if detached != nil {
		detached = fmt.Errorf("umount: %w: %s", detached, out)
	}
	return root, errors.Join(err, detached)
}

func (d *Disk) ballast() string { return filepath.Join(d.dir, "ballast") }

// Fill leaves no room on the disk.
func (d *Disk) Fill(ctx context.Context) error {
	if d.root == nil {
		return d.process.limitFiles(ctx, "64") // the mark, 48 bytes, has its place
	}
	f, err := os.OpenFile(d.ballast(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("fill the disk: %w", err)
	}
	for page := make([]byte, 64<<10); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("fill the disk: %w", errors.Join(err, f.Close()))
	}
	return f.Close()
}

// Free gives the room back.
func (d *Disk) Free(ctx context.Context) error {
	if d.root == nil {
		return d.process.limitFiles(ctx, "unlimited")
	}
	return os.Remove(d.ballast())
}

// limitFiles bounds the size of what the process writes, if it runs.
func (p *Process) limitFiles(ctx context.Context, bytes string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil || p.child.Ended() {
		return nil
	}
	out, err := exec.CommandContext(ctx, "prlimit", "--pid", strconv.Itoa(p.child.PID()), "--fsize="+bytes+":").CombinedOutput()
	if err != nil {
		return fmt.Errorf("limit the files of %s: %w: %s", p.Name, err, out)
	}
	return nil
}
