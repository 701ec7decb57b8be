// Package reread keeps in memory a value whose truth lies elsewhere, such as a row in a database. It is read at the start, each period, and soon after
// somebody says that it may have changed. A prompt carries nothing: it makes the value be read again, so a false one costs a read, and a lost one
// costs a period.
package reread

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
)

const (
	// pace is the least time between two reads, so that a flood of prompts costs a bounded number.
	pace = 10 * time.Millisecond
	// retry is when a read that failed is tried again, if the period is not shorter.
	retry = time.Second
	// readTimeout bounds one read.
	readTimeout = 5 * time.Second
)

// Value is the last reading of something. Use New; Run drives it. It is safe for concurrent use.
type Value[T comparable] struct {
	clk    clock.Clock
	log    *zap.Logger
	period func() time.Duration
	read   func(ctx context.Context) (T, error)
	wake   chan struct{} // holds one token while a prompt has not been followed

	mu      sync.Mutex // guards the rest
	value   T
	known   bool
	changed chan struct{} // closed and replaced when value or known change
}

// New returns a Value that is not known until Run has read it once. period is asked before each wait, which is an eighth shorter or longer, so that
// readers do not read in step.
func New[T comparable](clk clock.Clock, log *zap.Logger, period func() time.Duration, read func(ctx context.Context) (T, error)) *Value[T] {
	return &Value[T]{clk: clk, log: log, period: period, read: read, wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// Current returns the last reading; known is false before the first that succeeded.
func (v *Value[T]) Current() (value T, known bool) {
	value, known, _ = v.Watch()
	return value, known
}

// Watch is Current with a channel that is closed at the next change: who looks, and then waits on the channel, misses none.
func (v *Value[T]) Watch() (value T, known bool, changed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.value, v.known, v.changed
}

// Await returns the last reading, or waits for the first, for as long as ctx allows.
func (v *Value[T]) Await(ctx context.Context) (T, error) {
	for {
		value, known, changed := v.Watch()
		if known {
			return value, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return value, context.Cause(ctx)
		}
	}
}

// Look makes the value be read again soon: by a read that begins after the call. It never blocks.
func (v *Value[T]) Look() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// Run reads again and again until ctx ends. While the truth cannot be read, the last reading stays.
func (v *Value[T]) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		wait := v.period()
		if !v.once(ctx) {
			wait = min(wait, retry)
		}
		v.pause(ctx, wait)
	}
	return nil
}

func (v *Value[T]) pause(ctx context.Context, wait time.Duration) {
	if v.clk.Sleep(ctx, pace) != nil {
		return
	}
	clock.Rest(ctx, v.clk, wait-wait/8+rand.N(wait/4+1), v.wake) //nolint:gosec // G404: jitter needs spread, not secrecy.
}

// once reports whether the truth could be read.
func (v *Value[T]) once(ctx context.Context) bool {
	read, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	value, err := v.read(read)
	if err != nil {
		if ctx.Err() == nil {
			v.log.Warn("cannot be read again, the last reading stays", zap.Error(err))
		}
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.known && v.value == value {
		return true
	}
	v.value, v.known = value, true
	close(v.changed)
	v.changed = make(chan struct{})
	return true
}
