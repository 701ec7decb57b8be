package localpg

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"postrider.dev/pkg/child"
)

// account is the user the server runs as; nil means the current one.
type account struct{ uid, gid uint32 }

// unprivileged returns the account to drop to, nil when there is nothing to drop.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil //nolint:nilnil // no account to switch to is the ordinary case, not an error
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("ids of user %s: %w", name, err)
		}
		return &account{uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, errors.New("started by root, and neither user postgres nor nobody exists to run the server")
}

// user is the account as a child's user.
func (a *account) user() *child.User {
	if a == nil {
		return nil
	}
	return &child.User{UID: a.uid, GID: a.gid}
}

// chown gives path to the account.
func (a *account) chown(path string) error {
	if a == nil {
		return nil
	}
	return os.Lchown(path, int(a.uid), int(a.gid))
}

// reaches says whether the account may enter every folder above path. Folders that do not exist yet are created by us, readable.
func (a *account) reaches(path string) bool {
	if a == nil {
		return true
	}
	for dir := path; ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && !a.enters(info) {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}

func (a *account) enters(info os.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	mode := info.Mode().Perm()
	switch {
	case st.Uid == a.uid:
		return mode&0o100 != 0
	case st.Gid == a.gid:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}

// Where folders go that the account could not reach where they were wished. Only root relocates, and only root writes here.
const (
	relocated          = "/var/lib/localpg"
	relocatedTemporary = relocated + "/temporary"
	// wishFile, in a relocated folder, holds the path that was wished.
	wishFile = "relocated-from"
)

// place returns the folder to use for the wish: the wish itself, or, when the account cannot reach it, a folder of the
// same name for ever (a hash of the wish) below /var/lib.
func (a *account) place(wish string) (string, error) {
	abs, err := filepath.Abs(wish)
	if err != nil {
		return "", fmt.Errorf("locate %s: %w", wish, err)
	}
	if target, err := filepath.EvalSymlinks(abs); err == nil {
		abs = target
	}
	if a.reaches(filepath.Dir(abs)) {
		return abs, nil
	}
	base := relocated
	if temporary(abs) {
		base = relocatedTemporary
		sweep(base)
	}
	sum := sha256.Sum256([]byte(abs))
	dir := filepath.Join(base, hex.EncodeToString(sum[:6]))
	if err := a.mkdir(dir); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, wishFile), []byte(abs), 0o600); err != nil {
		return "", fmt.Errorf("relocate %s: %w", abs, err)
	}
	return dir, nil
}

// temporary says whether a path lies where nothing is expected to last.
func temporary(path string) bool {
	for _, base := range []string{"/tmp", os.TempDir()} {
		if strings.HasPrefix(path, filepath.Clean(base)+"/") {
			return true
		}
	}
	return false
}

// sweep removes relocated folders that nobody owns and whose wish's own folder is gone: who removes a temporary folder means the data in it too, and does
// not know that it lies elsewhere.
func sweep(base string) {
	marks, err := filepath.Glob(filepath.Join(base, "*", wishFile))
	if err != nil {
		return
	}
	for _, mark := range marks {
		wish, err := os.ReadFile(mark) //nolint:gosec // the path is ours
		if err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Dir(string(wish))); !errors.Is(err, fs.ErrNotExist) { //nolint:gosec // root wrote it, and it is only looked at
			continue
		}
		dir := filepath.Dir(mark)
		lock, err := lockFile(filepath.Join(dir, ownerLock))
		if err != nil {
			continue // in use
		}
		_ = os.RemoveAll(dir) // the next one tries again
		_ = lock.Close()
	}
}
