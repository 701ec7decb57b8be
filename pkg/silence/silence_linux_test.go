package silence_test

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/silence"
)

func TestAConnectionIsGivenUpAfterTheTimeAskedFor(t *testing.T) {
	t.Parallel()
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer lis.Close() //nolint:errcheck // nothing was sent

	conn, err := silence.Dialer(&net.Dialer{}, 5*time.Second)(t.Context(), "tcp", lis.Addr().String())

	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // nothing was sent
	tcp, ok := conn.(*net.TCPConn)
	require.True(t, ok)
	raw, err := tcp.SyscallConn()
	require.NoError(t, err)
	var got int
	require.NoError(t, raw.Control(func(fd uintptr) {
		got, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, 0x12)
	}))
	require.NoError(t, err)
	require.Equal(t, 5000, got)
}

func TestAnythingButTCPIsLeftAlone(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	silence.GiveUpAfter(a, time.Second)
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
}
