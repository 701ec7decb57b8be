package drain

import (
	"context"
	"sync"
)

// Inflight counts handlers, so that the end can wait for them. A sync.WaitGroup would not do: its Add must not race with its Wait, and its Wait
// has no bound. The zero value is ready.
type Inflight struct {
	mu   sync.Mutex // guards all below
	n    int
	idle chan struct{} // closed when n falls to 0; nil while no one waits
}

// Add counts one more handler.
func (f *Inflight) Add() {
	f.mu.Lock()
	f.n++
	f.mu.Unlock()
}

// Done counts one handler less.
func (f *Inflight) Done() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n--
	if f.n == 0 && f.idle != nil {
		close(f.idle)
		f.idle = nil
	}
}

// Wait returns nil once there was a moment without handlers, or the cause of ctx's end.
func (f *Inflight) Wait(ctx context.Context) error {
	f.mu.Lock()
	if f.n == 0 {
		f.mu.Unlock()
		return nil
	}
	if f.idle == nil {
		f.idle = make(chan struct{})
	}
	idle := f.idle
	f.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
