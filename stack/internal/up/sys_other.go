//go:build !linux

package up

import (
	"os/exec"
	"syscall"
)

// bindToParent keeps Ctrl-C of the terminal from the child: the parent stops it in order.
func bindToParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}
