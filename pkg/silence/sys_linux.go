package silence

import (
	"net"
	"syscall"
	"time"
)

// tcpUserTimeout is TCP_USER_TIMEOUT: how long sent bytes may stay unacknowledged before the connection is given up.
const tcpUserTimeout = 0x12

// giveUpAfter is GiveUpAfter.
func giveUpAfter(conn net.Conn, d time.Duration) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // where it fails the connection lives a little longer
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(d.Milliseconds()))
	})
}
