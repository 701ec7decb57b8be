// Package keepstream keeps one bidirectional gRPC stream open for as long as a context lives: it dials again with a jittered backoff when the
// stream ends or falls silent, says hello first each time, and drops what cannot be sent instead of making a caller wait. It suits traffic
// that may be lost, such as hints; what must not be lost needs answers of its own.
package keepstream

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"postrider.dev/pkg/clock"
)

// ErrSilent ends a stream on which nothing arrived for Config.Silence.
var ErrSilent = errors.New("peer is silent")

// Config describes a kept stream. Open is required; a nil callback is not called.
type Config[Req, Resp any] struct {
	// Open starts a stream; its context ends when the stream is given up.
	Open func(ctx context.Context) (grpc.BidiStreamingClient[Req, Resp], error)
	// Hello makes the first message of each stream.
	Hello func() *Req
	// Receive gets the peer's messages in order, from one goroutine. It must not block for long: silence is measured outside it.
	Receive func(*Resp)
	// Up is called when a stream's first message has arrived, Down when a stream that was up was lost. That Run ends it is no loss.
	Up   func()
	Down func(error)
	// Silence is how long a peer may send nothing before the stream is given up; 0 means for ever.
	Silence time.Duration
	// Queue is how many messages may wait to be sent; default 1,024.
	Queue int
	// RetryMin and RetryMax bound the pause between attempts; default 50 ms and 2 s.
	RetryMin, RetryMax time.Duration
}

// Stream is a kept stream. Run drives it; Send may be called from anywhere at any time.
type Stream[Req, Resp any] struct {
	cfg   Config[Req, Resp]
	clk   clock.Clock
	queue chan *Req
	up    atomic.Bool
}

// New returns a stream that is down until Run runs.
func New[Req, Resp any](clk clock.Clock, cfg Config[Req, Resp]) *Stream[Req, Resp] {
	if cfg.Queue <= 0 {
		cfg.Queue = 1024
	}
	if cfg.RetryMin <= 0 {
		cfg.RetryMin = 50 * time.Millisecond
	}
	if cfg.RetryMax <= 0 {
		cfg.RetryMax = 2 * time.Second
	}
	return &Stream[Req, Resp]{cfg: cfg, clk: clk, queue: make(chan *Req, cfg.Queue)}
}

// IsUp reports whether the peer has answered on the current stream.
func (s *Stream[Req, Resp]) IsUp() bool { return s.up.Load() }

// Send queues a message and never blocks. It reports false when the message was dropped because the stream is down or its queue is
// full. True is no promise of arrival.
func (s *Stream[Req, Resp]) Send(m *Req) bool {
	if s.up.Load() {
		select {
		case s.queue <- m:
			return true
		default:
		}
	}
	return false
}

// Run keeps the stream open until ctx ends and returns nil then.
func (s *Stream[Req, Resp]) Run(ctx context.Context) error {
	pause := s.cfg.RetryMin
	for ctx.Err() == nil {
		wasUp, err := s.once(ctx)
		if wasUp {
			pause = s.cfg.RetryMin
			if s.cfg.Down != nil && ctx.Err() == nil {
				s.cfg.Down(err)
			}
		}
		jittered := pause/2 + rand.N(pause/2+1) //nolint:gosec // G404: jitter needs spread, not secrecy.
		_ = s.clk.Sleep(ctx, jittered)          // the end of ctx ends the loop
		pause = min(2*pause, s.cfg.RetryMax)
	}
	return nil
}

// once runs one stream to its end and says whether it ever was up.
func (s *Stream[Req, Resp]) once(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := s.cfg.Open(ctx)
	if err != nil {
		return false, err
	}
	if s.cfg.Hello != nil {
		if err := stream.Send(s.cfg.Hello()); err != nil {
			return false, err
		}
	}

	heard := make(chan struct{}, 1)
	received := make(chan error, 1)
	go func() { received <- s.receive(stream, heard) }()
	err = s.pump(ctx, stream, heard, received)
	wasUp := s.up.Swap(false)
	cancel(err)
	if !errors.Is(err, errReceiverDone) {
		<-received //nolint:errcheck // the receiver ends with the stream's context, and says only that
	}
	s.discard()
	return wasUp, err
}

var errReceiverDone = errors.New("stream ended")

// receive hands messages on until the stream ends, and tells pump that it heard something.
func (s *Stream[Req, Resp]) receive(stream grpc.BidiStreamingClient[Req, Resp], heard chan<- struct{}) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		if !s.up.Swap(true) && s.cfg.Up != nil {
			s.cfg.Up()
		}
		select {
		case heard <- struct{}{}:
		default:
		}
		if s.cfg.Receive != nil {
			s.cfg.Receive(m)
		}
	}
}

// pump sends what is queued until the stream ends, the peer falls silent or ctx ends. It wraps errReceiverDone when the receiver has already ended.
func (s *Stream[Req, Resp]) pump(ctx context.Context, stream grpc.BidiStreamingClient[Req, Resp], heard <-chan struct{}, received <-chan error) error {
	var silent <-chan time.Time
	var timer clock.Timer
	if s.cfg.Silence > 0 {
		timer = s.clk.NewTimer(s.cfg.Silence)
		defer timer.Stop()
		silent = timer.C()
	}
	for {
		select {
		case m := <-s.queue:
			if err := stream.Send(m); err != nil {
				return err
			}
		case <-heard:
			if timer != nil {
				timer.Reset(s.cfg.Silence)
			}
		case err := <-received:
			return errors.Join(errReceiverDone, err)
		case <-silent:
			return ErrSilent
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// discard empties the queue: what waited for a dead stream is stale.
func (s *Stream[Req, Resp]) discard() {
	for {
		select {
		case <-s.queue:
		default:
			return
		}
	}
}
