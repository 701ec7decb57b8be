package loop

import (
	"context"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/dispatcher/internal/domain/queue"
)

const (
	housekeepEvery = 5 * time.Second
	trimKeys       = 10_000
)

// purger frees what deleted queues and groups left behind, a bit at a time; false means that nothing is left.
type purger interface {
	Purge(ctx context.Context) (bool, error)
}

// keyTrimmer forgets idempotency keys that are older than any window.
type keyTrimmer interface {
	TrimKeys(ctx context.Context, age time.Duration, most int) (int, error)
}

// Housekeeper frees space.
type Housekeeper struct {
	purge purger
	keys  keyTrimmer
	clk   clock.Clock
	log   *zap.Logger
}

// NewHousekeeper returns a Housekeeper.
func NewHousekeeper(purge purger, keys keyTrimmer, clk clock.Clock, log *zap.Logger) *Housekeeper {
	return &Housekeeper{purge: purge, keys: keys, clk: clk, log: log}
}

// Run frees space until ctx ends.
func (h *Housekeeper) Run(ctx context.Context) error {
	return every(ctx, h.clk, housekeepEvery, h.log, "housekeeper", h.round)
}

func (h *Housekeeper) round(ctx context.Context) error {
	for more := true; more && ctx.Err() == nil; {
		var err error
		if more, err = h.purge.Purge(ctx); err != nil {
			return err
		}
	}
	for ctx.Err() == nil {
		n, err := h.keys.TrimKeys(ctx, queue.MaxIdempotencyWindow, trimKeys)
		if err != nil || n < trimKeys {
			return err
		}
	}
	return nil
}
