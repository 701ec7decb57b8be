//go:build !linux

package fleet

import "os/exec"

// endWithParent does nothing here: the test's cleanup ends the process.
func endWithParent(*exec.Cmd) {}
