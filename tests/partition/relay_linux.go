package partition

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// relay carries connections from one namespace into another.
type relay struct {
	addr  string // where it listens
	lis   net.Listener
	from  *namespace
	to    string
	delay *atomic.Int64 // of every byte, each way, in nanoseconds; nil: none

	mu    sync.Mutex // guards conns and done
	conns map[net.Conn]bool
	done  bool
	wg    sync.WaitGroup
}

// newRelay listens at addr in one namespace and connects to another address in another, until the end of the test.
func newRelay(t testing.TB, in *namespace, addr string, from *namespace, to string, delay *atomic.Int64) *relay {
	t.Helper()
	lis, err := in.listen(t.Context(), addr)
	require.NoError(t, err)
	r := &relay{addr: lis.Addr().String(), lis: lis, from: from, to: to, delay: delay, conns: map[net.Conn]bool{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r.wg.Go(func() { r.accept(ctx) })
	t.Cleanup(func() {
		cancel()
		r.stop()
	})
	return r
}

func (r *relay) stop() {
	_ = r.lis.Close()
	r.mu.Lock()
	r.done = true
	for conn := range r.conns {
		_ = conn.Close()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

// keep notes a connection, and reports false when the relay has stopped.
func (r *relay) keep(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done {
		_ = conn.Close()
		return false
	}
	r.conns[conn] = true
	return true
}

func (r *relay) accept(ctx context.Context) {
	for {
		near, err := r.lis.Accept()
		if err != nil {
			return // stopped
		}
		if r.keep(near) {
			r.wg.Go(func() { r.serve(ctx, near) })
		}
	}
}

// serve ends both connections when either ends.
func (r *relay) serve(ctx context.Context, near net.Conn) {
	defer near.Close() //nolint:errcheck // it has ended
	far, err := r.from.dial(ctx, r.to)
	if err != nil || !r.keep(far) {
		return
	}
	var ways sync.WaitGroup
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		ways.Go(func() {
			r.carry(way[0], way[1])
			_ = near.Close()
			_ = far.Close()
		})
	}
	ways.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, near)
	delete(r.conns, far)
}

// carry takes bytes from one connection to the other, each after the delay and in order.
func (r *relay) carry(from, to net.Conn) {
	type chunk struct {
		bytes []byte
		due   time.Time
	}
	under := make(chan chunk, 1024) // what is under way
	var sending sync.WaitGroup
	defer sending.Wait()
	defer close(under)
	sending.Go(func() {
		for c := range under {
			<-time.After(time.Until(c.due))
			if _, err := to.Write(c.bytes); err != nil {
				_ = from.Close()
				for range under { // the reader ends now
				}
				return
			}
		}
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			due := time.Now()
			if r.delay != nil {
				due = due.Add(time.Duration(r.delay.Load()))
			}
			under <- chunk{append([]byte(nil), buf[:n]...), due}
		}
		if err != nil {
			return
		}
	}
}
