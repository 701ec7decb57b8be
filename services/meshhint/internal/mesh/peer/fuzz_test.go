package peer_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/meshhint/internal/mesh/frame"
	"postrider.dev/services/meshhint/internal/mesh/handshake"
	"postrider.dev/services/meshhint/internal/mesh/peer"
)

// nothing counts nothing.
type nothing struct{}

func (nothing) Sent(int)                       {}
func (nothing) Received(int)                   {}
func (nothing) Dropped(int)                    {}
func (nothing) Forged()                        {}
func (nothing) HandshakeFailed(string, string) {}
func (nothing) Ignored(string)                 {}

// taken is what a listener passed on.
type taken struct{ hints, everything int }

func (r *taken) FromCarrier(hints []*meshv1.Hint) { r.hints += len(hints) }
func (r *taken) EverythingChanged()               { r.everything++ }

// single is a listener with one connection, which it accepts; it is closed when that is.
type single struct {
	conns chan net.Conn
}

// hooked is a connection that ends its listener when it is closed.
type hooked struct {
	net.Conn

	once func()
}

func (h *hooked) Close() error {
	defer h.once()
	return h.Conn.Close()
}

// accepting returns a listener that accepts conn.
func accepting(conn net.Conn) *single {
	s := &single{conns: make(chan net.Conn, 1)}
	s.conns <- &hooked{conn, sync.OnceFunc(func() { close(s.conns) })}
	return s
}

func (s *single) Accept() (net.Conn, error) {
	conn, ok := <-s.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (s *single) Close() error   { return nil }
func (s *single) Addr() net.Addr { return &net.TCPAddr{} }

func options(secret handshake.Secret) peer.Options {
	return peer.Options{
		Self: handshake.Identity{ServerID: "victim", Host: "h"}, Secret: secret, Clock: clock.Real{}, Log: zap.NewNop(), Counts: nothing{},
		HeartbeatEvery: time.Second, DeadAfter: time.Second, HandshakeTimeout: time.Second,
	}
}

// FuzzListener says anything to a listener that has a secret: nothing of it is taken for a hint or a peer, and the connection ends.
func FuzzListener(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(frame.Frame{Tag: frame.MaintenanceChanged, Payload: []byte(`{}`)}.Append(nil))
	f.Add(frame.Frame{Tag: frame.Hello, Payload: []byte(`{"version":1,"server_id":"x","host":"h","nonce":"00","mac":"00"}`)}.Append(nil))
	f.Fuzz(func(t *testing.T, said []byte) {
		ours, theirs := net.Pipe()
		lis, got := accepting(theirs), &taken{}
		l := peer.NewListener(lis, options(handshake.Secret("a secret of at least sixteen bytes")), got, peer.NewLiveness(clock.Real{}, time.Second), func() {
			t.Errorf("%q was taken for a peer", said)
		})
		heard := make(chan struct{})
		go func() {
			defer close(heard)
			_, _ = io.Copy(io.Discard, ours)
		}()
		go func() {
			_, _ = ours.Write(said)
			_ = ours.Close()
		}()

		_ = l.Run(context.WithoutCancel(t.Context())) // returns when the connection was served; what it returns is the end of accepting
		<-heard

		if got.hints+got.everything > 0 {
			t.Fatalf("%q was taken for %d hints", said, got.hints)
		}
	})
}

// FuzzSession says anything behind a good handshake of an open mesh, where nothing is sealed with a secret: the listener ends the connection or reads on, and
// what it passes on was a frame.
func FuzzSession(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add(frame.Frame{Tag: frame.MessageAvailable, Payload: []byte(`{"queue":"q"}`)}.Append(nil))
	f.Add(frame.Frame{Tag: frame.HotlistDirtyBatch, Payload: []byte(`{"partitions":[{"queue":"q","partition":"p"}]}`)}.Append(nil))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 4})
	f.Fuzz(func(t *testing.T, said []byte) {
		want := 0
		for in := io.Reader(bytes.NewReader(said)); ; {
			fr, err := frame.Read(in, frame.MaxLength)
			if err != nil {
				break
			}
			hints, _ := frame.Decode(fr)
			want += len(hints)
		}
		ours, theirs := net.Pipe()
		lis, got := accepting(theirs), &taken{}
		l := peer.NewListener(lis, options(nil), got, peer.NewLiveness(clock.Real{}, time.Second), func() {})
		greeted := make(chan error, 1)
		go func() {
			_, _, err := handshake.Dial(ours, handshake.Identity{ServerID: "x", Host: "h"}, nil, nil, func(handshake.Identity) error { return nil })
			greeted <- err
			_, _ = ours.Write(said)
			_ = ours.Close()
		}()

		_ = l.Run(context.WithoutCancel(t.Context()))

		if err := <-greeted; err != nil {
			t.Fatal(err)
		}
		if got.everything != 1 || got.hints != want {
			t.Fatalf("%q was taken for %d hints, not %d", said, got.hints, want)
		}
	})
}
