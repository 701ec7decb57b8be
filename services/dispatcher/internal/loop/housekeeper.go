package loop

import (
	"context"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/queue"
)

const (
	housekeepEvery = 5 * time.Second
	trimKeys       = 10_000
	trimRequests   = 1_000
	trimTraces     = 5_000
)

// coldStore is the cold side of the store.
type coldStore interface {
	// Purge frees what deleted queues and groups left behind, a bit at a time; false means that nothing is left.
	Purge(ctx context.Context) (bool, error)
	// TrimRequests forgets up to most control requests that were answered too long ago to be repeated, and returns how many.
	TrimRequests(ctx context.Context, most int) (int, error)
	// TrimTransactions is TrimRequests for requests of one method, the one of transactions, which are remembered for less long.
	TrimTransactions(ctx context.Context, method string, most int) (int, error)
	// TrimTraces forgets up to most rows of trace events that are too old, and returns how many.
	TrimTraces(ctx context.Context, most int) (int, error)
}

// keyTrimmer forgets idempotency keys that are older than any window.
type keyTrimmer interface {
	TrimKeys(ctx context.Context, age time.Duration, most int) (int, error)
}

// Housekeeper frees space.
type Housekeeper struct {
	control coldStore
	keys    keyTrimmer
	clk     clock.Clock
	log     *zap.Logger
}

// NewHousekeeper returns a Housekeeper.
func NewHousekeeper(control coldStore, keys keyTrimmer, clk clock.Clock, log *zap.Logger) *Housekeeper {
	return &Housekeeper{control: control, keys: keys, clk: clk, log: log}
}

// Run frees space until ctx ends.
func (h *Housekeeper) Run(ctx context.Context) error {
	return every(ctx, h.clk, housekeepEvery, h.log, "housekeeper", h.round)
}

func (h *Housekeeper) round(ctx context.Context) error {
	for more := true; more && ctx.Err() == nil; {
		var err error
		if more, err = h.control.Purge(ctx); err != nil {
			return err
		}
	}
	err := untilFew(ctx, trimKeys, func() (int, error) { return h.keys.TrimKeys(ctx, queue.MaxIdempotencyWindow, trimKeys) })
	if err != nil {
		return err
	}
	err = untilFew(ctx, trimRequests, func() (int, error) {
		return h.control.TrimTransactions(ctx, queuev1.QueueService_Transact_FullMethodName, trimRequests)
	})
	if err != nil {
		return err
	}
	err = untilFew(ctx, trimRequests, func() (int, error) { return h.control.TrimRequests(ctx, trimRequests) })
	if err != nil {
		return err
	}
	return untilFew(ctx, trimTraces, func() (int, error) { return h.control.TrimTraces(ctx, trimTraces) })
}

// untilFew repeats trim, which frees up to most rows, until it found fewer.
func untilFew(ctx context.Context, most int, trim func() (int, error)) error {
	for ctx.Err() == nil {
		if n, err := trim(); err != nil || n < most {
			return err
		}
	}
	return nil
}
