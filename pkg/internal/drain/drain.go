// Package drain is the one order in which every server of ours ends:
//
//	serving ── ctx ends ──▶ not ready ── Delay ──▶ going away ── at most Timeout ──▶ closed
//
// Not ready: health says so while requests are still served, because balancers learn of an end later than the process does. Going away: long polls and
// streams are told to return; nothing new is accepted and what is in flight finishes. At Timeout the rest is cut off.
package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"postrider.dev/pkg/clock"
)

// ErrTimeout is matched by the result of a drain that had to cut requests off.
var ErrTimeout = errors.New("drain timed out")

// errStopped is why a server that stopped by itself is a failure.
var errStopped = errors.New("the server stopped without being told to")

// Server is what Run needs of a server. Run calls each function at most once, in the order below.
type Server struct {
	Serve    func() error                    // blocks until the server stops; its error after Shutdown or Close has begun means nothing
	NotReady func()                          // health turns to not serving
	GoAway   func()                          // long polls and streams are told to end
	Shutdown func(ctx context.Context) error // accepts nothing new and waits for what is in flight; MUST return soon after Close or the end of ctx
	Close    func()                          // cuts everything off; makes Serve return; MUST be harmless after Shutdown and when called twice
	Inflight *Inflight                       // the handlers; those cut off get handlerGrace to notice
}

// handlerGrace is how long handlers whose connection was cut are waited for. Their contexts have ended; one that does not notice is left behind, since
// the process must end.
const handlerGrace = time.Second

// Run serves until ctx ends and drains, or until the server fails. nil: everything in flight was finished.
func Run(ctx context.Context, clk clock.Clock, delay, timeout time.Duration, s Server) error {
	served := make(chan error, 1)
	go func() { served <- s.Serve() }() // awaited on every path
	select {
	case <-ctx.Done():
	case err := <-served:
		if err != nil || ctx.Err() == nil {
			return fail(ctx, s, err)
		}
		served <- nil // it was told to end, and had stopped before
	}
	s.NotReady()
	if delay > 0 {
		t := clk.NewTimer(delay)
		defer t.Stop()
		select {
		case <-t.C():
		case err := <-served:
			return fail(ctx, s, err)
		}
	}
	s.GoAway()
	err := shutdown(context.WithoutCancel(ctx), clk, timeout, s)
	s.Close()
	ignore(<-served) // it was told to stop, so how it stopped means nothing
	s.await(ctx)
	return err
}

func ignore(error) {}

// await waits for the handlers that Close has cut off, if there are any.
func (s Server) await(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handlerGrace)
	defer cancel()
	_ = s.Inflight.Wait(ctx)
}

// fail ends a server that has stopped by itself.
func fail(ctx context.Context, s Server, err error) error {
	s.NotReady()
	s.GoAway()
	s.Close()
	s.await(ctx)
	if err == nil {
		err = errStopped
	}
	return fmt.Errorf("serve: %w", err)
}

func shutdown(ctx context.Context, clk clock.Clock, timeout time.Duration, s Server) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if timeout <= 0 {
		return nil // no time to drain was granted, so closing is as told
	}
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(ctx) }() // awaited on both paths
	t := clk.NewTimer(timeout)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C():
		cancel()
		s.Close()
		ignore(<-done) // the timeout is what there is to say
		return fmt.Errorf("%w: what was still in flight after %v is cut off", ErrTimeout, timeout)
	}
}
