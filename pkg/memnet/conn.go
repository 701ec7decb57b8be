package memnet

import (
	"errors"
	"net"
	"sync"
	"time"

	"postrider.dev/pkg/clock"
)

// conn is one end of a connection in memory. The connection below may report a deadline that has been moved or taken back meanwhile, since its timer can
// fire after it was stopped; conn does not pass such a report on. HTTP servers take deadlines back with every request.
type conn struct {
	net.Conn

	mu          sync.Mutex // guards the deadlines; zero means none
	read, write time.Time
}

// Read reads; a deadline that does not hold any more is no error.
func (c *conn) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if n > 0 || !c.outdated(err, &c.read, c.Conn.SetReadDeadline) {
			return n, err
		}
	}
}

// Write writes; a deadline that does not hold any more is no error.
func (c *conn) Write(p []byte) (int, error) {
	written := 0
	for {
		n, err := c.Conn.Write(p[written:])
		written += n
		if !c.outdated(err, &c.write, c.Conn.SetWriteDeadline) {
			return written, err
		}
	}
}

// outdated reports whether err is a timeout of a deadline that does not hold any more, and sets the one that does.
func (c *conn) outdated(err error, deadline *time.Time, set func(time.Time) error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	if !ok || !timeout.Timeout() {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !deadline.IsZero() && !(clock.Real{}).Now().Before(*deadline) {
		return false
	}
	return set(*deadline) == nil
}

// SetDeadline bounds reads and writes.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline bounds reads.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read = t
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline bounds writes.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write = t
	return c.Conn.SetWriteDeadline(t)
}
