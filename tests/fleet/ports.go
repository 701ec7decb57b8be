package fleet

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/memnet"
)

// The ports of real processes lie below those that systems give to outgoing connections: one of these could take the port of a process that has not started
// yet, or that was killed and comes back. Those of stack/internal/cli's tests lie below 30,000.
const (
	firstPort = 30_000
	portCount = 2_700
)

// freeAddr is an address of this machine that a process may listen at, now and again after it was killed. It is this test's until its end, whoever else looks
// for one at the same time.
func freeAddr(t testing.TB) string {
	t.Helper()
	for range 10 * portCount {
		port := firstPort + rand.IntN(portCount)
		if !reserve(t, port) {
			continue
		}
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if lis, err := memnet.ListenTCP(t.Context(), addr); err == nil {
			require.NoError(t, lis.Close())
			return addr
		}
	}
	t.Fatalf("no port from %d to %d is free", firstPort, firstPort+portCount-1)
	return ""
}

// reserve takes the lock of a port until the test's end, or says that another test has it. The kernel gives it back for a test process that is killed.
func reserve(t testing.TB, port int) bool {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(os.TempDir(), fmt.Sprintf("postrider-test-port-%d", port)), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil { // a descriptor fits
		require.NoError(t, f.Close())
		return false
	}
	t.Cleanup(func() { _ = f.Close() }) // gives the lock back
	return true
}
