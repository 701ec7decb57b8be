package engine

import (
	"context"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
)

// identity notices that another database answers: a standby took over, or a backup was restored. It may lack the last commits, and hold other segments at
// the offsets that are remembered here. So memory is believed only as long as no new connection was made since the identity was last read.
type identity struct {
	connected atomic.Uint64 // counts new connections; 1 stands for those made before anything was read
	read      atomic.Uint64 // what connected was before the identity was last read; raised only once memory is of that database

	mu   sync.Mutex // guards last; held across the read, so that all who need it wait for one
	last string
}

// verified says that memory is of the database that answers.
func (id *identity) verified() bool { return id.read.Load() >= id.connected.Load() }

// Reconnected says that a new connection to the database was made.
func (e *Engine) Reconnected() { e.identity.connected.Add(1) }

// sameDatabase returns when it is known that the database is the one that memory is of. If it is not, memory is cleared first.
func (e *Engine) sameDatabase(ctx context.Context) error {
	id := &e.identity
	if id.verified() {
		return nil
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.verified() {
		return nil
	}
	connected := id.connected.Load()
	ctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
	defer cancel()
	now, err := e.db.Identity(ctx)
	if err != nil {
		return err
	}
	if id.last != "" && id.last != now {
		e.log.Warn("another database answers: everything remembered is dropped", zap.String("was", id.last), zap.String("is", now))
		e.clear()
	}
	id.last = now
	id.read.Store(connected)
	return nil
}

// clear forgets everything that was read from the database. Views are dropped when they are next used.
func (e *Engine) clear() {
	e.segments.Clear()
	e.catalog.InvalidateAll()
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.heads)
	for _, s := range e.shards {
		s.head.Store(0)
		s.replace()
	}
	for _, g := range e.groups {
		for _, s := range g.shards {
			s.mu.Lock()
			s.reset = true
			s.mu.Unlock()
		}
	}
}
