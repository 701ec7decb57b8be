package fleet

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/tests/hintfault"
)

// Binaries builds the programs once a test process, into a temporary folder named for the process; the next run removes it.
type Binaries struct {
	once sync.Once
	dir  string
	err  error
	log  []byte
}

// Services are the programs of a host and of the fleet.
func Services() []string { return []string{"ingress", "dispatcher", "meshhint", "scheduler", "audit"} }

// Path returns the path of a program: a service, or "postrider".
func (b *Binaries) Path(t testing.TB, program string) string {
	t.Helper()
	b.once.Do(b.build)
	require.NoError(t, b.err, "build: %s", b.log)
	return filepath.Join(b.dir, program)
}

const dirPrefix = "postrider-bin-"

func (b *Binaries) build() {
	sweep()
	b.dir = filepath.Join(os.TempDir(), dirPrefix+strconv.Itoa(os.Getpid()))
	if b.err = os.MkdirAll(b.dir, 0o700); b.err != nil {
		return
	}
	args := []string{"build", "-o", b.dir + "/", "postrider.dev/stack/cmd/postrider"}
	for _, s := range Services() {
		from := "postrider.dev/services/" + s + "/cmd/" + s
		if s == "meshhint" && hintfault.FromEnv() != hintfault.None {
			from = "postrider.dev/tests/cmd/meshhint" // the sidecar that can lose hints
		}
		args = append(args, from)
	}
	b.log, b.err = exec.Command("go", args...).CombinedOutput() //nolint:noctx // the project's own packages
}

// sweep removes the folders of test processes that have ended.
func sweep() {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir)[len(dirPrefix):])
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir)
		}
	}
}
