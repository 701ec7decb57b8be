package peer

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/meshhint/internal/mesh/handshake"
)

// queueLen is how many frames may wait for one peer.
const queueLen = 1024

// Options are what both ends need. All but the TLS configurations are required.
type Options struct {
	Self   handshake.Identity
	Secret handshake.Secret // empty: open
	Clock  clock.Clock
	Log    *zap.Logger
	Counts Counts

	// HeartbeatEvery is how often a Sender says that it lives.
	HeartbeatEvery time.Duration
	// DeadAfter is how long a peer may be silent, and how long it may take nothing of what is sent to it.
	DeadAfter time.Duration
	// HandshakeTimeout bounds a connection's way to its first frame, TLS included.
	HandshakeTimeout time.Duration

	Dial func(ctx context.Context, addr string) (net.Conn, error)

	// ClientTLS returns what a connection to host is made with; nil: no TLS.
	ClientTLS func(host string) *tls.Config
	// ServerTLS is what connections are accepted with; nil: no TLS.
	ServerTLS *tls.Config
}

// Counts is told what happens. Its methods MUST NOT block.
type Counts interface {
	Sent(frames int)
	Received(frames int)
	// Dropped counts frames that were not sent: the peer's queue was full or its connection broke.
	Dropped(frames int)
	// Forged counts frames that were not what their sender sealed.
	Forged()
	// HandshakeFailed counts handshakes that failed, by side (dialled or accepted) and reason.
	HandshakeFailed(side, reason string)
	// Ignored counts what a frame had in it that is not known.
	Ignored(what string)
}

// bindingLabel and bindingBytes name a TLS channel, so that a handshake counts on its own channel only.
const (
	bindingLabel = "EXPORTER-postrider-mesh"
	bindingBytes = 32
)

// secure makes conn a TLS connection, if the mesh has TLS, and names its channel.
func secure(ctx context.Context, conn net.Conn, wrap func(net.Conn) *tls.Conn) (net.Conn, []byte, error) {
	if wrap == nil {
		return conn, nil, nil
	}
	c := wrap(conn)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, nil, &tlsError{err}
	}
	state := c.ConnectionState()
	binding, err := state.ExportKeyingMaterial(bindingLabel, nil, bindingBytes)
	if err != nil {
		return nil, nil, &tlsError{err}
	}
	return c, binding, nil
}

// tlsError is a failure of TLS, as different from one of the mesh's own handshake.
type tlsError struct{ err error }

func (e *tlsError) Error() string { return "tls: " + e.err.Error() }
func (e *tlsError) Unwrap() error { return e.err }
