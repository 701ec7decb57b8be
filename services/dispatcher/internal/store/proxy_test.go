package store_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// cut says what happens to the message at which the connection breaks.
type cut int

const (
	cutBefore   cut = iota + 1 // it never reaches the server, which sees the connection end
	cutAfter                   // it reaches the server, and then the connection ends on both sides
	cutUnheard                 // it reaches the server, which goes on and believes the client is there
	cutLate                    // it reaches the server when the test says so, long after the client saw the connection end
	cutSplit                   // the first half reaches the server, the rest never, and the server believes the client is there
	cutSplitEnd                // the same, and the server sees the connection end
)

// proxy stands between one process and the server. Once armed, it cuts at the n-th message (a write of the client; a batch is one) and then lets
// new connections through.
type proxy struct {
	t        testing.TB
	listener net.Listener

	mu    sync.Mutex // guards all below
	left  int        // messages until the cut; 0 is not armed
	how   cut
	sent  int // messages seen
	did   bool
	late  []func() // deliver what is late
	conns []net.Conn
	wg    sync.WaitGroup
}

// newProxy starts one in front of dial.
func newProxy(t testing.TB, dial func(context.Context) (net.Conn, error)) *proxy {
	t.Helper()
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{t: t, listener: listener}
	ctx := detached(t)
	p.wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := dial(ctx)
			if err != nil {
				_ = client.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, client, server)
			p.mu.Unlock()
			p.wg.Go(func() { _, _ = io.Copy(client, server); _ = client.Close() })
			p.wg.Go(func() { p.pump(client, server) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		for _, conn := range p.conns {
			_ = conn.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

// arm makes the n-th message from now on the last one of its connection.
func (p *proxy) arm(n int, how cut) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.how, p.did, p.sent = n, how, false, 0
}

// count returns how many messages passed since arm, and whether it cut.
func (p *proxy) count() (int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sent, p.did
}

// deliver lets what is late arrive.
func (p *proxy) deliver() {
	p.mu.Lock()
	late := p.late
	p.late = nil
	p.mu.Unlock()
	for _, send := range late {
		send()
	}
}

// pump carries the client's messages to the server. A message ends with Sync or Terminate, so a batch is one however it is cut into packets.
func (p *proxy) pump(client, server net.Conn) {
	defer client.Close() //nolint:errcheck // ends with either side
	first := true
	for {
		message, err := readMessage(client, first)
		first = false
		if err != nil {
			_ = server.Close()
			return
		}
		switch p.next() {
		case 0:
			if _, err := server.Write(message); err != nil {
				return
			}
			continue
		case cutBefore:
			_ = server.Close()
		case cutAfter:
			_, _ = server.Write(message)
			_ = server.Close()
		case cutUnheard:
			_, _ = server.Write(message)
		case cutSplit:
			_, _ = server.Write(message[:len(message)/2])
		case cutSplitEnd:
			_, _ = server.Write(message[:len(message)/2])
			_ = server.Close()
		case cutLate:
			p.mu.Lock()
			p.late = append(p.late, func() { _, _ = server.Write(message) })
			p.mu.Unlock()
		}
		return
	}
}

// next counts a message and says whether it is the one to cut.
func (p *proxy) next() cut {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent++
	if p.left == 0 {
		return 0
	}
	if p.left--; p.left > 0 {
		return 0
	}
	p.did = true
	return p.how
}

// readMessage reads what the client sends before it waits for an answer: the start packet, or protocol messages up to one that is answered.
func readMessage(r io.Reader, first bool) ([]byte, error) {
	var out []byte
	for {
		head := 5
		if first {
			head = 4
		}
		start := len(out)
		out = append(out, make([]byte, head)...)
		if _, err := io.ReadFull(r, out[start:]); err != nil {
			return nil, err
		}
		size := out[start+head-4:]
		length := int(size[0])<<24 | int(size[1])<<16 | int(size[2])<<8 | int(size[3])
		if length < 4 {
			return nil, errors.New("not a message")
		}
		body := len(out)
		out = append(out, make([]byte, length-4)...)
		if _, err := io.ReadFull(r, out[body:]); err != nil {
			return nil, err
		}
		if kind := out[start]; first || kind == 'S' || kind == 'X' || kind == 'Q' || kind == 'p' || kind == 'H' {
			return out, nil
		}
	}
}
