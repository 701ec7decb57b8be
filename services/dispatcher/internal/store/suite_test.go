package store_test

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/domain/window/windowtest"
)

func TestStorePassesTheSuiteOfStores(t *testing.T) {
	t.Parallel()
	windowtest.Run(t, func(t *testing.T) (windowtest.Store, window.GroupShardID) {
		t.Helper()
		b := newBench(t)
		gs := b.groupShard(b.shard())
		return rows{bench: b, id: gs}, gs
	})
}

// rows is one group-shard of a store, as the suite wants it.
type rows struct {
	bench *bench
	id    window.GroupShardID
}

func (r rows) Read() (window.Snapshot, error) {
	state, err := r.bench.store.Snapshot(r.bench.t.Context(), r.id)
	return state.Snapshot, err
}

func (r rows) Apply(c window.Change) (window.Stamp, error) {
	c.DeadLetters = slices.Clone(c.DeadLetters)
	for i := range c.DeadLetters {
		c.DeadLetters[i].ID = uuid.Must(uuid.NewV7())
	}
	results, err := r.bench.store.Work(r.bench.t.Context(), []window.Change{c})
	switch {
	case err != nil:
		return window.Stamp{}, err
	case results[0].Early(&c):
		return window.Stamp{}, &windowtest.TooEarlyError{Now: results[0].Now}
	case !results[0].Applied:
		return window.Stamp{}, windowtest.ErrStale
	}
	return results[0].Stamp, nil
}
