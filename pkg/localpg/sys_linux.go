package localpg

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// attributes make the server survive the terminal's Ctrl-C (it is for us to stop it, last), stop cleanly when we die, and run as the account.
func attributes(a *account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// isServer says whether the process lives, is no zombie, and serves the data folder. A zombie's command line is empty.
func isServer(pid int, dataDir string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(line, []byte("\x00"+dataDir+"\x00"))
}
