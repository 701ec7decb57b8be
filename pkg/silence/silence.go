// Package silence ends TCP connections whose other side has gone without a word: a host that lost its power or was cut off answers nothing, not even that
// it is away, and without a limit the system would send again for a quarter of an hour.
package silence

import (
	"context"
	"net"
	"time"
)

// GiveUpAfter makes the system end the connection once what was sent has been unacknowledged for d, by the other side's kernel: a program there that is
// merely slow is waited for. Where the system cannot do that (it takes Linux) or conn is not TCP, nothing changes.
func GiveUpAfter(conn net.Conn, d time.Duration) { giveUpAfter(conn, d) }

// Dialer returns a function that connects as d does, to connections that are given up after so long.
func Dialer(d *net.Dialer, after time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, addr)
		if err == nil {
			GiveUpAfter(conn, after)
		}
		return conn, err
	}
}
