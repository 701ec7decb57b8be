//go:build !linux

package localpg

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// attributes make the server survive the terminal's Ctrl-C (it is for us to stop it, last) and run as the account. There is no parent death
// signal here: the next Start on the folder stops an orphan.
func attributes(a *account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// isServer says whether the process lives and serves the data folder.
func isServer(pid int, dataDir string) bool {
	out, err := exec.CommandContext(context.Background(), "ps", "-ww", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(out), "-D "+dataDir+" ")
}
