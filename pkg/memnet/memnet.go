// Package memnet is a network inside one process: addresses of the form "mem:NAME" connect its parts through memory, every other address is TCP.
//
// A process that holds several services lends one Network to all of them, so they use the same servers, clients and interceptors as over TCP.
// Dialling a name that nobody listens on yet waits, as a service that starts first should; so the order in which services start does not matter.
package memnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc/test/bufconn"
)

// Prefix marks the addresses that stay in the process.
const Prefix = "mem:"

// bufferBytes is how much one direction of a connection holds before its writer waits.
const bufferBytes = 256 << 10

// ErrInUse is matched by the error of Listen on a name that has a listener.
var ErrInUse = errors.New("address already in use")

// Network connects names. Use New.
type Network struct {
	mu        sync.Mutex // guards all below
	listeners map[string]*listener
	opened    chan struct{} // closed and replaced when a name gets a listener
}

// New returns a network without listeners.
func New() *Network {
	return &Network{listeners: make(map[string]*listener), opened: make(chan struct{})}
}

// Listen opens addr. Closing the listener frees its name; connections that were accepted live on.
func (n *Network) Listen(ctx context.Context, addr string) (net.Listener, error) {
	name, ok := strings.CutPrefix(addr, Prefix)
	if !ok {
		return ListenTCP(ctx, addr)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case name == "":
		return nil, errors.New("listen mem: no name")
	case n.listeners[name] != nil:
		return nil, fmt.Errorf("listen %s: %w", addr, ErrInUse)
	}
	l := &listener{Listener: bufconn.Listen(bufferBytes), network: n, name: name}
	n.listeners[name] = l
	close(n.opened)
	n.opened = make(chan struct{})
	return l, nil
}

// Dial connects to addr. For a name without a listener it waits for one until ctx ends.
func (n *Network) Dial(ctx context.Context, addr string) (net.Conn, error) {
	name, ok := strings.CutPrefix(addr, Prefix)
	if !ok {
		return DialTCP(ctx, addr)
	}
	for {
		n.mu.Lock()
		l, opened := n.listeners[name], n.opened
		n.mu.Unlock()
		if l != nil {
			dialled, err := l.DialContext(ctx)
			if err == nil {
				return &conn{Conn: dialled}, nil
			}
			if !n.gone(l) {
				return nil, wrap(addr, err)
			}
			continue // it was closed between the look and the dial; wait for its successor
		}
		select {
		case <-opened:
		case <-ctx.Done():
			return nil, wrap(addr, context.Cause(ctx))
		}
	}
}

// gone reports whether l has been closed.
func (n *Network) gone(l *listener) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.listeners[l.name] != l
}

func wrap(addr string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("dial %s: %w", addr, err)
}

type listener struct {
	*bufconn.Listener

	network *Network
	name    string
}

// Close frees the name before waking dialers, so that none of them can meet a closed listener that still has it.
func (l *listener) Close() error {
	l.network.mu.Lock()
	if l.network.listeners[l.name] == l {
		delete(l.network.listeners, l.name)
	}
	l.network.mu.Unlock()
	return l.Listener.Close()
}

// Accept returns net.ErrClosed after Close, as TCP does and servers expect.
func (l *listener) Accept() (net.Conn, error) {
	accepted, err := l.Listener.Accept()
	if err != nil {
		return nil, fmt.Errorf("accept %s: %w", l.Addr(), net.ErrClosed) // closing is the only way to fail
	}
	return &conn{Conn: accepted}, nil
}

func (l *listener) Addr() net.Addr { return address(l.name) }

type address string

func (address) Network() string  { return "mem" }
func (a address) String() string { return Prefix + string(a) }

// ListenTCP opens a TCP listener on addr.
func ListenTCP(ctx context.Context, addr string) (net.Listener, error) {
	if strings.HasPrefix(addr, Prefix) {
		return nil, fmt.Errorf("listen %s: this process has no network in memory", addr)
	}
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", addr)
}

// DialTCP connects to addr over TCP.
func DialTCP(ctx context.Context, addr string) (net.Conn, error) {
	if strings.HasPrefix(addr, Prefix) {
		return nil, fmt.Errorf("dial %s: this process has no network in memory", addr)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}
