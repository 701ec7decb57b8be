package httpserver

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// freshGrace is how long, after the listener closed, a fresh connection may still show that its request is on the way.
const freshGrace = 10 * time.Millisecond

// fresh knows the connections on which no request has come yet. http.Server.Shutdown waits 5 s for such a one; clients and balancers open them ahead
// of need, so every drain would. After freshGrace closing one is safe: nothing was asked on it, and who is about to ask asks elsewhere.
type fresh struct {
	mu     sync.Mutex // guards all below
	conns  map[net.Conn]struct{}
	closed bool
}

// track is the server's ConnState hook.
func (f *fresh) track(c net.Conn, state http.ConnState) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(f.conns, c)
	case f.closed:
		_ = c.Close() // accepted while the server was closing
	default:
		if f.conns == nil {
			f.conns = make(map[net.Conn]struct{})
		}
		f.conns[c] = struct{}{}
	}
}

// close closes the fresh connections, and from now on each new one.
func (f *fresh) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for c := range f.conns {
		_ = c.Close()
	}
	f.conns = nil
}
