package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/meshhint/internal/mesh/frame"
	"postrider.dev/services/meshhint/internal/mesh/handshake"
)

const (
	acceptPauseMin = 5 * time.Millisecond
	acceptPauseMax = time.Second
)

// Receiver gets what peers hint at. Its methods MUST NOT block.
type Receiver interface {
	FromCarrier(hints []*meshv1.Hint)
	EverythingChanged()
}

// Listener accepts the connections of peers and receives on them. It sends nothing but its part of the handshake.
type Listener struct {
	lis      net.Listener
	o        Options
	receiver Receiver
	joined   func()
	live     *Liveness
	room     *room
	quiet    *quiet
}

// NewListener returns a Listener on lis, which Run closes. joined is called when a peer was accepted.
func NewListener(lis net.Listener, o Options, receiver Receiver, live *Liveness, joined func()) *Listener {
	return &Listener{lis: lis, o: o, receiver: receiver, live: live, joined: joined, room: newRoom(), quiet: newQuiet(o.Clock)}
}

// Connected is how many peers are connected.
func (l *Listener) Connected() int { return l.room.peersLen() }

// Run accepts until ctx ends; then every connection is closed, and it returns when nothing of them is left.
func (l *Listener) Run(ctx context.Context) error {
	unhook := context.AfterFunc(ctx, func() { _ = l.lis.Close() })
	defer unhook()
	var served sync.WaitGroup
	defer served.Wait()
	serving, end := context.WithCancel(ctx)
	defer end()
	pause := acceptPauseMin
	for {
		conn, err := l.lis.Accept()
		switch {
		case err == nil:
			pause = acceptPauseMin
			served.Go(func() { l.serve(serving, conn) })
		case ctx.Err() != nil:
			return nil // it was told to end
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept: %w", err)
		default: // for example no file descriptors are left
			l.o.Log.Warn("accept a peer", zap.Error(err))
			if l.o.Clock.Sleep(ctx, pause) != nil {
				return nil // it was told to end
			}
			pause = min(2*pause, acceptPauseMax)
		}
	}
}

// serve takes one connection from its handshake to its end.
func (l *Listener) serve(ctx context.Context, raw net.Conn) {
	defer raw.Close() //nolint:errcheck // it is of no use any more
	unhook := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer unhook()
	if pushedOut := l.room.enter(raw); pushedOut {
		l.o.Counts.HandshakeFailed(accepted, reasonCrowded)
	}
	conn, peer, opener, err := l.introduce(ctx, raw)
	if err != nil {
		if l.room.leave(raw) && ctx.Err() == nil { // who was pushed out is counted already
			l.failed(raw, err)
		}
		return
	}
	if !l.room.sit(raw, peer.ServerID) {
		l.o.Counts.HandshakeFailed(accepted, reasonFull)
		return
	}
	defer l.room.rise(raw, peer.ServerID)
	l.live.Joined(peer)
	l.o.Log.Info("peer connected", zap.String("host_id", peer.Host), zap.Stringer("addr", raw.RemoteAddr()))
	l.receiver.EverythingChanged() // what it sent before is lost
	l.joined()
	if err := l.receive(conn, peer, opener); ctx.Err() == nil {
		l.o.Log.Info("peer disconnected", zap.String("host_id", peer.Host), zap.Error(err))
	}
}

func (l *Listener) introduce(ctx context.Context, raw net.Conn) (net.Conn, handshake.Identity, *handshake.Opener, error) {
	if err := raw.SetDeadline(l.o.Clock.Now().Add(l.o.HandshakeTimeout)); err != nil { // for all of it: who sends a byte now and then gets no longer
		return nil, handshake.Identity{}, nil, err
	}
	var wrap func(net.Conn) *tls.Conn
	if l.o.ServerTLS != nil {
		wrap = func(c net.Conn) *tls.Conn { return tls.Server(c, l.o.ServerTLS) }
	}
	conn, binding, err := secure(ctx, raw, wrap)
	if err != nil {
		return nil, handshake.Identity{}, nil, err
	}
	peer, opener, err := handshake.Accept(conn, l.o.Self, l.o.Secret, binding)
	if err != nil {
		return nil, handshake.Identity{}, nil, err
	}
	return conn, peer, opener, raw.SetDeadline(time.Time{})
}

func (l *Listener) failed(conn net.Conn, err error) {
	reason := reasonOf(accepted, err)
	if reason == reasonNone {
		return
	}
	l.o.Counts.HandshakeFailed(accepted, reason)
	if failures, ok := l.quiet.failed(reason); ok {
		l.o.Log.Warn("a handshake with this sidecar failed", zap.Stringer("addr", conn.RemoteAddr()), zap.String("reason", reason),
			zap.Int("failures", failures), zap.Error(err))
	}
}

// receive passes hints on until the connection ends, and says why it did. Who is silent for DeadAfter has ended.
func (l *Listener) receive(conn net.Conn, peer handshake.Identity, opener *handshake.Opener) error {
	in := newBuffered(conn)
	for {
		if err := conn.SetReadDeadline(l.o.Clock.Now().Add(l.o.DeadAfter)); err != nil {
			return err
		}
		f, err := opener.Read(in)
		if err != nil {
			if errors.Is(err, handshake.ErrForged) || errors.Is(err, frame.ErrTooLong) || errors.Is(err, frame.ErrNoTag) {
				l.o.Counts.Forged()
			}
			return err
		}
		l.live.Touch(peer.ServerID)
		l.o.Counts.Received(1)
		hints, ignored := frame.Decode(f)
		for _, what := range ignored {
			l.o.Counts.Ignored(string(what))
		}
		if len(hints) > 0 {
			l.receiver.FromCarrier(hints)
		}
	}
}
