// Package porttest shares out the ports of one machine among tests of several processes, which cannot know of one another: a port that was free when it was
// looked at may be somebody's a moment later, before the process it is meant for has started or while it is down.
package porttest

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Reserve takes the lock of a port until the test's end, or says that another test has it. Who takes the first of a block of ports by agreement has them all.
// It says nothing of programs that do not ask. The kernel gives the lock of a test process that was killed back.
func Reserve(t testing.TB, port int) bool {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(os.TempDir(), fmt.Sprintf("postrider-test-port-%d", port)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatalf("reserve port %d: %v", port, err)
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil { // a descriptor fits
		_ = f.Close() // it holds nothing
		return false
	}
	t.Cleanup(func() { _ = f.Close() }) // gives the lock back
	return true
}
