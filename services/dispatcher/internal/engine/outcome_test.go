package engine_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pg"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// cutter breaks connections to the database on demand.
type cutter struct {
	armed atomic.Int32           // cutAnswer or cutRequest; the next connection that speaks is broken
	word  atomic.Pointer[string] // where set, the one that says this word
	did   atomic.Int32
	down  atomic.Bool // after the cut nothing gets through any more
	ear   atomic.Pointer[ear]
}

// ear calls fn whenever an answer contains the text, before the client hears it.
type ear struct {
	text string
	fn   func()
}

func (c *cutter) heard(text string, fn func()) { c.ear.Store(&ear{text, fn}) }

func (c *cutter) away() bool { return c.down.Load() && c.did.Load() > 0 }

const (
	cutAnswer  = 1 // the server has done it, and its answer is lost
	cutRequest = 2 // the request never reaches the server
)

func (c *cutter) pool(o *pg.Options) {
	o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if c.away() {
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &cutConn{Conn: conn, c: c}, nil
	}
}

type cutConn struct {
	net.Conn

	c   *cutter
	mu  sync.Mutex // guards cut
	cut bool       // the answer to what was last written is to be lost
}

func (c *cutConn) Write(b []byte) (int, error) {
	if c.c.away() {
		_ = c.Close()
		return 0, syscall.EPIPE
	}
	if word := c.c.word.Load(); word != nil && !bytes.Contains(b, []byte(*word)) {
		return c.Conn.Write(b)
	}
	if c.c.armed.CompareAndSwap(cutRequest, 0) {
		c.c.did.Add(1)
		_ = c.Close()
		return len(b), nil // as far as the client can tell it was sent
	}
	if c.c.armed.CompareAndSwap(cutAnswer, 0) {
		c.mu.Lock()
		c.cut = true
		c.mu.Unlock()
	}
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if ear := c.c.ear.Load(); ear != nil && bytes.Contains(b[:max(n, 0)], []byte(ear.text)) {
		ear.fn()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cut && err == nil {
		c.cut = false
		c.c.did.Add(1)
		_ = c.Close()
		return 0, io.ErrUnexpectedEOF
	}
	return n, err
}

func TestAFlushWhoseAnswerIsLostIsAppendedOnce(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]int32{"answer lost": cutAnswer, "request lost": cutRequest} {
		for _, key := range []string{"", "k"} {
			t.Run(name+" key="+key, func(t *testing.T) {
				t.Parallel()
				c := &cutter{}
				n := newNode(t, database(t), nodeOptions{pool: c.pool})
				n.push("q", item("a", "0"))

				c.armed.Store(how)
				resp, err := n.Push(t.Context(), ten, &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{
					{Partition: "a", Payload: []byte("1"), IdempotencyKey: key},
				}})
				require.NoError(t, err)
				all := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})

				require.Equal(t, int32(1), c.did.Load())
				require.Equal(t, queuev1.PushStatus_PUSH_STATUS_QUEUED, resp.GetResults()[0].GetStatus())
				require.Equal(t, int64(1), resp.GetResults()[0].GetOffset())
				require.Equal(t, []string{"0", "1"}, payloads(all))
			})
		}
	}
}

func TestAPopWhoseAnswerIsLostLeavesNoLeaseBehind(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]int32{"answer lost": cutAnswer, "request lost": cutRequest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &cutter{}
			n := newNode(t, database(t), nodeOptions{pool: c.pool})
			n.push("q", item("a", "0"))
			warm := n.pop(&queuev1.PopRequest{Queue: "q"})
			n.ackAll("q", warm.GetLease())
			n.push("q", item("a", "1"))

			c.armed.Store(how)
			popped := n.pop(&queuev1.PopRequest{Queue: "q", Wait: seconds(20)})
			n.ackAll("q", popped.GetLease())
			rest := n.pop(&queuev1.PopRequest{Queue: "q"})

			require.Equal(t, int32(1), c.did.Load())
			require.Equal(t, []string{"1"}, payloads(popped))
			require.Equal(t, int32(1), popped.GetDeliveries()[0].GetAttempt())
			require.Empty(t, rest.GetLease())
			require.InDelta(t, 0, n.leases(), 0)
		})
	}
}

func TestAnAckWhoseAnswerIsLostIsAnsweredAsDone(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]int32{"answer lost": cutAnswer, "request lost": cutRequest} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &cutter{}
			n := newNode(t, database(t), nodeOptions{pool: c.pool})
			n.push("q", item("a", "1"), item("a", "2"), item("b", "3"))
			popped := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})

			c.armed.Store(how)
			_, err := n.Ack(t.Context(), ten, &queuev1.AckRequest{Queue: "q", Lease: popped.GetLease(), AckRest: true})
			require.NoError(t, err)
			rest := n.pop(&queuev1.PopRequest{Queue: "q", Batch: 10})

			require.Equal(t, int32(1), c.did.Load())
			require.Empty(t, rest.GetLease())
		})
	}
}

// leases counts the open leases in the database.
func (n *node) leases() (count int) {
	n.t.Helper()
	require.NoError(n.t, n.db.QueryRow(n.t.Context(), "SELECT count(*) FROM dispatcher.leases").Scan(&count))
	return count
}
