package engine

import (
	"context"
	"sync"
	"sync/atomic"

	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
)

type queueName struct {
	tenant tenant.ID
	name   string
}

// arrivals keeps callers of one queue in their order while the queue is looked up.
type arrivals struct {
	count   atomic.Int64 // queues being looked up
	mu      sync.Mutex   // guards waiting
	waiting map[queueName][]func(*catalog.Queue, error)
}

// withQueue calls fn with the queue, made if need be: at once if it is cached, else when it was read, after all earlier callers.
func (e *Engine) withQueue(ctx context.Context, name queueName, fn func(*catalog.Queue, error)) {
	a := &e.arrivals
	if a.count.Load() == 0 {
		if q, ok := e.catalog.Cached(name.tenant, name.name); ok {
			fn(q, e.usable(q))
			return
		}
	}
	a.mu.Lock()
	if queue, busy := a.waiting[name]; busy {
		a.waiting[name] = append(queue, fn)
		a.mu.Unlock()
		return
	}
	if q, ok := e.catalog.Cached(name.tenant, name.name); ok {
		a.mu.Unlock()
		fn(q, e.usable(q))
		return
	}
	a.waiting[name] = []func(*catalog.Queue, error){fn}
	a.count.Add(1)
	a.mu.Unlock()
	if !e.background(func() { e.resolve(ctx, name) }) {
		e.serveArrivals(name, nil, ErrDraining)
	}
}

// resolve reads a queue for all who wait for it.
func (e *Engine) resolve(ctx context.Context, name queueName) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.Patience) // it is read for others too
	defer cancel()
	q, err := e.queueForPush(ctx, name.tenant, name.name)
	e.serveArrivals(name, q, err)
}

// serveArrivals calls all who wait, those who come meanwhile too.
func (e *Engine) serveArrivals(name queueName, q *catalog.Queue, err error) {
	a := &e.arrivals
	for {
		a.mu.Lock()
		fns := a.waiting[name]
		if len(fns) == 0 {
			delete(a.waiting, name)
			a.count.Add(-1)
			a.mu.Unlock()
			return
		}
		a.waiting[name] = []func(*catalog.Queue, error){}
		a.mu.Unlock()
		for _, fn := range fns {
			fn(q, err)
		}
	}
}
