package memnet_test

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/memnet"
)

func TestADeadlineThatWasTakenBackCutsNothingOff(t *testing.T) {
	t.Parallel()
	n := memnet.New()
	l, err := n.Listen(t.Context(), "mem:x")
	require.NoError(t, err)
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			accepted <- conn
		}
	}()
	client, err := n.Dial(t.Context(), "mem:x")
	require.NoError(t, err)
	server := <-accepted
	buf := make([]byte, 1)

	for range 2000 { // what an HTTP server does between two requests
		require.NoError(t, server.SetReadDeadline(time.Now().Add(time.Microsecond)))
		require.NoError(t, server.SetReadDeadline(time.Time{}))
		_, err := client.Write([]byte("x"))
		require.NoError(t, err)
		_, err = server.Read(buf)
		require.NoError(t, err)
	}

	require.NoError(t, server.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, err = server.Read(buf)
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout())
	require.NoError(t, client.Close())
	require.NoError(t, server.Close())
	require.NoError(t, l.Close())
}
