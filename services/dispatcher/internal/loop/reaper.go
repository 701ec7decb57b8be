package loop

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	// reapShards is how many group-shards one look at the index brings.
	reapShards = 256
	// reapAtOnce is how many of them are worked on side by side.
	reapAtOnce = 16
)

// expirer finds leases that ran out, by the database's clock.
type expirer interface {
	ExpiredLeases(ctx context.Context, limit int) ([]store.Expired, error)
}

// reclaimer takes back what ran out on a group-shard.
type reclaimer interface {
	Reclaim(ctx context.Context, id window.GroupShardID) error
}

// Reaper takes back leases that ran out although nobody pops, so that a last failure becomes a dead letter within about a second.
type Reaper struct {
	db     expirer
	engine reclaimer
	clk    clock.Clock
	log    *zap.Logger
	period time.Duration
}

// NewReaper returns a Reaper that sweeps once a period while it runs.
func NewReaper(db expirer, engine reclaimer, clk clock.Clock, log *zap.Logger, period time.Duration) *Reaper {
	return &Reaper{db: db, engine: engine, clk: clk, log: log, period: period}
}

// Run sweeps until ctx ends.
func (r *Reaper) Run(ctx context.Context) error {
	return every(ctx, r.clk, r.period, r.log, "reaper", r.Sweep)
}

// Sweep takes back what has run out by now.
func (r *Reaper) Sweep(ctx context.Context) error {
	found, err := r.db.ExpiredLeases(ctx, reapShards)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	var mu sync.Mutex // guards errs
	var errs []error
	room := make(chan struct{}, reapAtOnce)
	for _, x := range found {
		room <- struct{}{}
		wg.Go(func() {
			defer func() { <-room }()
			if err := r.engine.Reclaim(ctx, x.GroupShard); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
