package peer

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/silence"
	"postrider.dev/services/meshhint/internal/mesh/frame"
	"postrider.dev/services/meshhint/internal/mesh/handshake"
)

const (
	// A redial comes after the upper half of a span that grows from redialMin to redialMax: between 250 ms and 5 s.
	redialMin = 500 * time.Millisecond
	redialMax = 5 * time.Second
	// redialIdle is the pause where a connection is not wanted now: the address leads to this sidecar itself, or to one that another Sender reached.
	redialIdle = 30 * time.Second
	// burst bounds the frames that are written before they are flushed.
	burst = 256
)

var errUnwanted = errors.New("no connection is wanted to this sidecar")

// Status is a Sender at one moment.
type Status struct {
	Address    Address
	Connected  bool
	ResolvedIP string // empty unless connected
	ServerID   string // of the peer; empty unless connected
}

// Sender dials one address, each time resolving it anew, and sends the frames that were offered. It receives nothing.
type Sender struct {
	addr    Address
	o       Options
	claim   func(serverID string) (release func(), ok bool)
	queue   chan frame.Frame
	retry   chan struct{} // holds one token when the next attempt need not wait
	backoff time.Duration // of the goroutine of Run

	mu     sync.Mutex // guards status
	status Status
}

// NewSender returns a Sender that does nothing until Run. claim is asked whether a connection to a sidecar is wanted; release is called when it ended.
func NewSender(addr Address, o Options, claim func(serverID string) (release func(), ok bool)) *Sender {
	return &Sender{addr: addr, o: o, claim: claim, queue: make(chan frame.Frame, queueLen), retry: make(chan struct{}, 1), backoff: redialMin, status: Status{Address: addr}}
}

// Offer queues frames. It never blocks: what does not fit is dropped and counted.
func (s *Sender) Offer(frames []frame.Frame) {
	for i, f := range frames {
		select {
		case s.queue <- f:
		default:
			s.o.Counts.Dropped(len(frames) - i)
			return
		}
	}
}

// Retry ends the pause before the next attempt, if there is one now: there is news of a peer. It never blocks.
func (s *Sender) Retry() {
	select {
	case s.retry <- struct{}{}:
	default:
	}
}

// Status shows the Sender.
func (s *Sender) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

func (s *Sender) setStatus(st Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Address = s.addr
	s.status = st
}

// Run dials until ctx ends.
func (s *Sender) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := s.connect(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to end
		}
		s.o.Log.Debug("no connection to a peer", zap.Stringer("addr", s.addr), zap.Error(err))
		s.rest(ctx, s.pause(err))
	}
	return nil
}

// rest waits, until it is told to try again or ctx ends at the longest.
func (s *Sender) rest(ctx context.Context, pause time.Duration) {
	if clock.Rest(ctx, s.o.Clock, pause, s.retry) {
		s.backoff = redialMin
	}
}

// pause is how long to wait before the next attempt: the upper half of a span that doubles with each failure, at random, so that the peers of a sidecar that
// comes back do not dial it in step.
func (s *Sender) pause(err error) time.Duration {
	span := s.backoff
	if errors.Is(err, errUnwanted) {
		span = redialIdle
	} else {
		s.backoff = min(2*s.backoff, redialMax)
	}
	return span/2 + rand.N(span/2) //nolint:gosec // G404: jitter needs spread, not secrecy.
}

// connect makes one connection and sends until it ends.
func (s *Sender) connect(ctx context.Context) error {
	patience, cancel := context.WithTimeout(ctx, s.o.HandshakeTimeout)
	defer cancel()
	raw, err := s.o.Dial(patience, s.addr.String())
	if err != nil {
		return err
	}
	defer raw.Close() //nolint:errcheck // it is of no use any more
	unhook := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer unhook()
	silence.GiveUpAfter(raw, s.o.DeadAfter)
	if err := raw.SetDeadline(s.o.Clock.Now().Add(s.o.HandshakeTimeout)); err != nil {
		return err
	}
	release := func() {}
	conn, peer, sealer, err := s.introduce(patience, raw, func(id handshake.Identity) error {
		let, ok := s.claim(id.ServerID)
		if !ok {
			return errUnwanted
		}
		release = let
		return nil
	})
	defer func() { release() }()
	if err != nil {
		if !errors.Is(err, errUnwanted) && ctx.Err() == nil {
			s.failed(err)
		}
		return err
	}
	if err := raw.SetDeadline(time.Time{}); err != nil {
		return err
	}
	s.backoff = redialMin
	s.setStatus(Status{Connected: true, ResolvedIP: ipOf(raw.RemoteAddr()), ServerID: peer.ServerID})
	defer s.setStatus(Status{})
	s.o.Log.Info("connected to a peer", zap.Stringer("addr", s.addr), zap.String("host_id", peer.Host))
	err = s.send(ctx, conn, sealer)
	select {
	case <-s.retry: // told while there was nothing to retry: a peer that ends is not dialled by all at once
	default:
	}
	return err
}

func (s *Sender) introduce(ctx context.Context, raw net.Conn, admit func(handshake.Identity) error) (net.Conn, handshake.Identity, *handshake.Sealer, error) {
	var wrap func(net.Conn) *tls.Conn
	if s.o.ClientTLS != nil {
		wrap = func(c net.Conn) *tls.Conn { return tls.Client(c, s.o.ClientTLS(s.addr.Host)) }
	}
	conn, binding, err := secure(ctx, raw, wrap)
	if err != nil {
		return nil, handshake.Identity{}, nil, err
	}
	peer, sealer, err := handshake.Dial(conn, s.o.Self, s.o.Secret, binding, admit)
	return conn, peer, sealer, err
}

func (s *Sender) failed(err error) {
	s.o.Counts.HandshakeFailed(dialled, reasonOf(dialled, err))
	s.o.Log.Warn("handshake with a peer failed", zap.Stringer("addr", s.addr), zap.Error(err))
}

// send writes what is offered, and a heartbeat now and each HeartbeatEvery, until ctx ends or the connection does. The peer has nothing to say: whatever
// comes from it, its end above all, ends the connection.
func (s *Sender) send(ctx context.Context, conn net.Conn, sealer *handshake.Sealer) error {
	gone := make(chan struct{})
	go func() { // ends when connect closes the connection; awaited below
		defer close(gone)
		_, _ = conn.Read(make([]byte, 1))
	}()
	defer func() {
		_ = conn.Close()
		<-gone
	}()
	w := &writer{conn: conn, buf: bufio.NewWriter(conn), sealer: sealer, clk: s.o.Clock, patience: s.o.DeadAfter, counts: s.o.Counts}
	beat := s.o.Clock.NewTicker(s.o.HeartbeatEvery)
	defer beat.Stop()
	next := frame.Frame{Tag: frame.Heartbeat, Payload: []byte("{}")}
	for {
		if err := w.write(next, s.queue); err != nil {
			return err
		}
		select {
		case next = <-s.queue:
		case <-beat.C():
			next = frame.Frame{Tag: frame.Heartbeat, Payload: []byte("{}")}
		case <-gone:
			return io.EOF
		case <-ctx.Done():
			return nil
		}
	}
}

// writer seals frames onto a connection.
type writer struct {
	conn     net.Conn
	buf      *bufio.Writer
	sealer   *handshake.Sealer
	clk      clock.Clock
	patience time.Duration
	counts   Counts
	scratch  []byte
}

// write sends f and what waits behind it. A peer that takes nothing for too long ends the connection.
func (w *writer) write(f frame.Frame, more <-chan frame.Frame) error {
	if err := w.conn.SetWriteDeadline(w.clk.Now().Add(w.patience)); err != nil {
		return err
	}
	for n := 1; ; n++ {
		w.scratch = w.sealer.Append(w.scratch[:0], f)
		if _, err := w.buf.Write(w.scratch); err != nil {
			w.counts.Dropped(n)
			return err
		}
		if n < burst {
			select {
			case f = <-more:
				continue
			default:
			}
		}
		if err := w.buf.Flush(); err != nil {
			w.counts.Dropped(n)
			return err
		}
		w.counts.Sent(n)
		return nil
	}
}

// ipOf is the address without the port.
func ipOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}
