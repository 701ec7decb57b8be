package up

import (
	"os/exec"
	"syscall"
)

// bindToParent ends the child when this process dies in any way, and keeps Ctrl-C of the terminal from it: the parent stops it in order.
func bindToParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
