package server

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"postrider.dev/services/ingress/internal/engine/answers"
)

// A large answer over gRPC. Its handler has returned long before its client reads it: gRPC queues it, and flow control lets it out bit by bit. There is no
// call that waits for that, nor one that resets the stream of a client that does not read. What gRPC does offer:
//
//   - It frees the buffer that a codec gave it when it is written, or when its stream ends before. So answers go through a codec of ours, whose buffers
//     tell us; and if the connection had not written as much meanwhile, the answer did not leave.
//   - It closes everything when the connection closes. So a client that does not read in time loses its connection: keepalive does not notice it, since the
//     client still answers pings, and a client that reads never leaves an answer for that long. What else it has on the connection it can repeat.

// pending is an answer that takes room until its client has read it.
type pending struct {
	message any
	hold    *answers.Hold
	undo    func()
	conn    *clientConn
	server  *Server

	ended chan struct{} // closed when it has left, or never will

	mu   sync.Mutex // guards gone
	gone bool
}

// heldBack is more than gRPC gathers before it writes to a connection: an answer may seem to lack that much when it has left.
const heldBack = 64 << 10

// encodedFrame is a message that was marshalled before: what many subscribers get is marshalled once.
type encodedFrame []byte

// pendingCodec is gRPC's codec, but for pending answers and encoded frames.
type pendingCodec struct{ encoding.CodecV2 }

func newPendingCodec() pendingCodec { return pendingCodec{encoding.GetCodecV2(protocodec.Name)} }

// Marshal gives gRPC the bytes of v.
func (c pendingCodec) Marshal(v any) (mem.BufferSlice, error) {
	if frame, ok := v.(encodedFrame); ok {
		return mem.BufferSlice{mem.SliceBuffer(frame)}, nil
	}
	p, ok := v.(*pending)
	if !ok {
		return c.CodecV2.Marshal(v)
	}
	m, ok := p.message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("marshal %T: not a message", p.message)
	}
	data, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("marshal an answer: %w", err)
	}
	p.message = nil // from here the bytes are all that is kept
	return p.begin(data), nil
}

// begin starts to watch the bytes of an answer as gRPC gets them.
func (p *pending) begin(data []byte) mem.BufferSlice {
	p.hold.Resize(int64(len(data)))
	if !p.conn.add(p) {
		p.end(false)
		return mem.BufferSlice{mem.SliceBuffer(data)} // the connection has ended: this goes nowhere
	}
	p.server.unread.Go(func() { p.watch(len(data)) })
	before, size := p.conn.written.Load(), int64(len(data))
	return mem.BufferSlice{mem.NewBuffer(&data, freed(func() { p.end(p.conn.written.Load()-before >= size-heldBack) }))}
}

// watch cuts the connection off if the answer does not leave in time.
func (p *pending) watch(size int) {
	timer := p.server.clk.NewTimer(p.server.patience(size))
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C():
		p.server.verbs.answers.CutOff()
		_ = p.conn.Close() // its end ends the answer, and all others of it
		<-p.ended
	}
}

// end is called when the answer has left, or never will. The first call counts.
func (p *pending) end(left bool) {
	p.mu.Lock()
	gone := p.gone
	p.gone = true
	p.mu.Unlock()
	if gone {
		return
	}
	close(p.ended)
	p.conn.remove(p)
	p.hold.Release()
	if !left {
		p.undo()
	}
}

// patience is how long a client may take to read an answer: a client that is merely slow reads a MiB a second.
func (s *Server) patience(size int) time.Duration {
	return s.cfg.AnswerTimeout + time.Duration(size)*time.Second/(1<<20)
}

// freed is told by gRPC that a buffer is not used any more.
type freed func()

// Get is never called: buffers come from the codec.
func (freed) Get(n int) *[]byte { return new(make([]byte, n)) }

// Put calls f.
func (f freed) Put(*[]byte) { f() }

// clientConn is a client's connection, as its calls know it.
type clientConn struct {
	net.Conn
	credentials.AuthInfo

	written atomic.Int64 // bytes

	mu      sync.Mutex // guards the rest
	pending map[*pending]struct{}
	ended   bool
}

// Write counts what it writes.
func (c *clientConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.written.Add(int64(n))
	return n, err
}

// add is false once the connection has ended.
func (c *clientConn) add(p *pending) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.pending[p] = struct{}{}
	return true
}

func (c *clientConn) remove(p *pending) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pending, p)
}

// lost ends all that is pending: nobody reads it any more.
func (c *clientConn) lost() {
	c.mu.Lock()
	c.ended = true
	all := make([]*pending, 0, len(c.pending))
	for p := range c.pending {
		all = append(all, p)
	}
	c.mu.Unlock()
	for _, p := range all {
		p.end(false)
	}
}

// connections makes clientConns of what is accepted.
type connections struct {
	credentials.TransportCredentials
}

func newConnections() connections { return connections{insecure.NewCredentials()} }

// ServerHandshake adds nothing to the wire.
func (c connections) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	_, info, err := c.TransportCredentials.ServerHandshake(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("take a connection: %w", err)
	}
	conn := &clientConn{Conn: raw, AuthInfo: info, pending: map[*pending]struct{}{}}
	return conn, conn, nil
}

// Clone returns a copy.
func (c connections) Clone() credentials.TransportCredentials {
	return connections{c.TransportCredentials.Clone()}
}

// pendingOptions are what a gRPC server needs for pending answers.
func pendingOptions() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.Creds(newConnections()), grpc.ForceServerCodecV2(newPendingCodec()), grpc.StatsHandler(deliveryWatch{})}
}
