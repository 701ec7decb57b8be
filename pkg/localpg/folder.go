package localpg

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"postrider.dev/pkg/child"
)

const accessRules = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"

// mkdir makes a private folder that belongs to the account, and its parents.
func (a *account) mkdir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // the account must pass through
		return fmt.Errorf("make folder: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make folder: %w", err)
	}
	if err := a.chown(dir); err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	return nil
}

// maxSocketDir leaves room for "/.s.PGSQL.65535" in the 103 bytes that a socket's path may have everywhere.
const maxSocketDir = 85

// socketDir makes the folder of the Unix socket: beside the data, or, where that path is too long for a socket, in /tmp, named after the data folder; someone
// else's folder of that name is not trusted.
func (a *account) socketDir(dir string) (string, error) {
	if near := filepath.Join(dir, "sockets"); len(near) <= maxSocketDir {
		return near, a.mkdir(near)
	}
	sum := sha256.Sum256([]byte(dir))
	name := filepath.Join("/tmp", "pg-"+hex.EncodeToString(sum[:8]))
	err := os.Mkdir(name, 0o700)
	if errors.Is(err, fs.ErrExist) && !a.owns(name) {
		name, err = os.MkdirTemp("/tmp", "pg-")
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make socket folder: %w", err)
	}
	if err := a.chown(name); err != nil {
		return "", fmt.Errorf("make socket folder: %w", err)
	}
	return name, nil
}

// owns says whether path is a folder, not a link, of the account or of us, closed to everyone else.
func (a *account) owns(path string) bool {
	info, err := os.Lstat(path)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	return int(st.Uid) == os.Geteuid() || a != nil && st.Uid == a.uid
}

// lockFile takes the lock of a file for the life of this process. The kernel releases it, however the process ends.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // the path is ours
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) // a descriptor fits
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(ErrInUse, f.Close())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// initialise makes the cluster, unless there is one of the right version. initdb works in a folder of another name that is renamed at the end,
// so a start that was interrupted leaves no half-made cluster.
func (s *Server) initialise(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(s.DataDir(), "PG_VERSION"))
	if err == nil {
		major, err := parseMajor(string(text))
		if err != nil {
			return fmt.Errorf("read version of %s: %w", s.DataDir(), err)
		}
		if major != s.opts.Binaries.Major {
			return &VersionError{Dir: s.DataDir(), Data: major, Binaries: s.opts.Binaries.Major}
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read version: %w", err)
	}
	half := filepath.Join(s.dir, "data.unfinished")
	if err := os.RemoveAll(half); err != nil {
		return fmt.Errorf("clear an unfinished cluster: %w", err)
	}
	args := []string{
		"-D", half, "-U", superuser, "-E", "UTF8", "--locale=C", "--auth-local=trust", "--auth-host=reject", "--no-instructions",
	}
	if !s.opts.Durable {
		args = append(args, "--no-sync")
	}
	if err := s.runInitdb(ctx, args); err != nil {
		return err
	}
	// The file exists and keeps its owner. Whoever can enter the socket's folder is trusted; on TCP every local user could knock.
	if err := os.WriteFile(filepath.Join(half, "pg_hba.conf"), []byte(accessRules), 0o600); err != nil {
		return fmt.Errorf("write access rules: %w", err)
	}
	if err := os.Rename(half, s.DataDir()); err != nil {
		return fmt.Errorf("finish the cluster: %w", err)
	}
	return nil
}

// runInitdb runs initdb as the server's user.
func (s *Server) runInitdb(ctx context.Context, args []string) error {
	log, offset, err := openLog(s.LogFile())
	if err != nil {
		return err
	}
	proc, err := child.Launch(ctx, child.Spec{
		Program: s.opts.Binaries.Path("initdb"), Args: args, Env: environment(), Output: log, User: s.acct.user(),
	})
	if err != nil {
		return err
	}
	select {
	case <-proc.Done():
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("initdb: %w", context.Cause(ctx)), proc.Kill())
	}
	if err := proc.Err(); err != nil {
		return &StartError{Log: readLog(s.LogFile(), offset), Err: fmt.Errorf("initdb: %w", err)}
	}
	return nil
}

// clearPredecessor makes sure that no earlier server runs on the data folder, and says whether one ended without cleaning up. We hold the folder's
// lock, so an earlier server that still runs is an orphan: its owner is gone.
func (s *Server) clearPredecessor(ctx context.Context) (crashed bool, err error) {
	file := filepath.Join(s.DataDir(), "postmaster.pid")
	deadline := s.clk.Now().Add(predecessorPatience)
	for asked := false; ; {
		pid, err := readPID(file)
		if err != nil || pid == 0 {
			return crashed, err
		}
		crashed = true
		if !isServer(ctx, pid, s.DataDir()) {
			return crashed, s.dropStalePID(file, pid)
		}
		sig := syscall.SIGINT
		if s.clk.Now().After(deadline) {
			sig = syscall.SIGKILL
		}
		if !asked || sig == syscall.SIGKILL {
			if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
				return crashed, fmt.Errorf("stop the orphaned server %d: %w", pid, err)
			}
			asked = true
		}
		if err := s.clk.Sleep(ctx, 50*time.Millisecond); err != nil {
			return crashed, err
		}
	}
}

// dropStalePID removes a PID file whose number now belongs to a zombie or to a stranger: PostgreSQL would take it for its predecessor.
func (s *Server) dropStalePID(file string, pid int) error {
	if syscall.Kill(pid, 0) != nil {
		return nil //nolint:nilerr // gone: PostgreSQL sees that itself
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove stale pid file: %w", err)
	}
	return nil
}

// readPID returns 0 when there is no file.
func readPID(file string) (int, error) {
	text, err := os.ReadFile(file) //nolint:gosec // the path is ours
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read pid file: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return 0, nil //nolint:nilerr // torn by a crash of the machine: nobody runs
	}
	return pid, nil
}
