package catalog_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rows is a database of queues and groups in memory that counts what it is asked.
type rows struct {
	mu     sync.Mutex // guards the rest
	queues map[string]store.Queue
	groups map[string]store.Group
	lastID int64
	reads  int
	broken error
	gate   chan struct{} // when set, FindQueue waits for it after having read
	inGate chan struct{}

	groupGate chan struct{} // the same for one FindGroup
}

func newRows() *rows {
	return &rows{queues: map[string]store.Queue{}, groups: map[string]store.Group{}}
}

func (r *rows) key(t tenant.ID, name string) string { return string(t) + "/" + name }

func (r *rows) FindQueue(_ context.Context, t tenant.ID, name string) (store.Queue, error) {
	r.mu.Lock()
	r.reads++
	q, ok := r.queues[r.key(t, name)]
	gate, broken := r.gate, r.broken
	r.mu.Unlock()
	if gate != nil {
		r.inGate <- struct{}{}
		<-gate
	}
	if broken != nil {
		return store.Queue{}, broken
	}
	if !ok {
		return store.Queue{}, fmt.Errorf("find: %w", store.ErrQueueNotFound)
	}
	return q, nil
}

func (r *rows) EnsureQueue(_ context.Context, t tenant.ID, name string) (store.Queue, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broken != nil {
		return store.Queue{}, false, r.broken
	}
	r.reads++
	if q, ok := r.queues[r.key(t, name)]; ok {
		return q, false, nil
	}
	r.lastID++
	q := store.Queue{ID: r.lastID, Tenant: t, Name: name, ConfigVersion: 1}
	r.queues[r.key(t, name)] = q
	return q, true, nil
}

func (r *rows) groupKey(q store.Queue, name string) string { return fmt.Sprint(q.ID, "/", name) }

func (r *rows) FindGroup(_ context.Context, q store.Queue, name string) (store.Group, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads++
	g, ok := r.groups[r.groupKey(q, name)]
	if gate := r.groupGate; gate != nil {
		r.groupGate = nil
		r.mu.Unlock()
		r.inGate <- struct{}{}
		<-gate
		r.mu.Lock()
	}
	if !ok {
		return store.Group{}, store.ErrGroupNotFound
	}
	return g, nil
}

func (r *rows) EnsureGroup(_ context.Context, q store.Queue, name string, o store.GroupOptions) (store.Group, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads++
	if g, ok := r.groups[r.groupKey(q, name)]; ok {
		return g, false, nil
	}
	r.lastID++
	g := store.Group{Group: o.Resolve(name), ID: r.lastID, QueueID: q.ID}
	r.groups[r.groupKey(q, name)] = g
	return g, true, nil
}

func (r *rows) configure(t tenant.ID, name string) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[r.key(t, name)]
	q.ConfigVersion++
	r.queues[r.key(t, name)] = q
	return q.ConfigVersion
}

func (r *rows) remove(t tenant.ID, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.queues, r.key(t, name))
}

func (r *rows) taken() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.reads
	r.reads = 0
	return n
}
