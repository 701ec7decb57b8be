package fleet

import (
	"os/exec"
	"syscall"
)

// endWithParent kills the process when the test process dies in any way.
func endWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
