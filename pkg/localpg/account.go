package localpg

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
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
	sum := sha256.Sum256([]byte(abs))
	return filepath.Join("/var/lib/localpg", hex.EncodeToString(sum[:6])), nil
}
