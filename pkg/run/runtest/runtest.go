// Package runtest lends an Env to tests and runs parts for them.
package runtest

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap/zaptest"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/run"
)

// endBound is how long a part may take to end before the test fails; tests under the race detector on a busy machine are slow.
const endBound = time.Minute

// New returns an Env with a network of its own ("mem:NAME" works, TCP too), a registry of its own, real time, and a log that shows when the
// test fails. A test that moves time replaces Clock.
func New(t testing.TB) run.Env {
	t.Helper()
	network := memnet.New()
	return run.Env{
		Log:     zaptest.NewLogger(t),
		Metrics: prometheus.NewRegistry(),
		Traces:  noop.NewTracerProvider(),
		Clock:   clock.Real{},
		Listen:  network.Listen,
		Dial:    network.Dial,
	}
}

// Go runs fn, such as a server's Run, until the returned stop is called, which ends its context, waits for it and returns its error. At the end of
// the test an fn that is still running is stopped, and an error that stop did not return fails the test.
func Go(t testing.TB, fn func(context.Context) error) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- fn(ctx) }() // awaited by stop, at the latest in the cleanup
	stopped := false
	stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			return err
		case <-clock.Real{}.After(endBound):
			t.Errorf("did not end within %v of being told to", endBound)
			return nil
		}
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("ended with: %v", err)
		}
	})
	return stop
}

// Eventually calls check until it returns nil, with a short pause between; it fails the test with the last error if that takes longer than a minute.
func Eventually(t testing.TB, check func() error) {
	t.Helper()
	clk := clock.Real{}
	start := clk.Now()
	for {
		err := check()
		if err == nil {
			return
		}
		if clk.Since(start) > endBound {
			t.Fatalf("still not after %v: %v", endBound, err)
		}
		<-clk.After(5 * time.Millisecond)
	}
}
