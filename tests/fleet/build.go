package fleet

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Binaries builds the programs once a test process.
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

// Remove deletes what was built.
func (b *Binaries) Remove() { _ = os.RemoveAll(b.dir) }

func (b *Binaries) build() {
	if b.dir, b.err = os.MkdirTemp("", "postrider-bin-"); b.err != nil {
		return
	}
	args := []string{"build", "-o", b.dir + "/", "postrider.dev/stack/cmd/postrider"}
	for _, s := range Services() {
		args = append(args, "postrider.dev/services/"+s+"/cmd/"+s)
	}
	b.log, b.err = exec.Command("go", args...).CombinedOutput() //nolint:gosec,noctx // the project's own packages
}
