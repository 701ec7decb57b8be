package fleet

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/porttest"
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
		if !porttest.Reserve(t, port) {
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
