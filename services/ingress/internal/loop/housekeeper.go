package loop

import (
	"context"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
)

const (
	trimEvery   = time.Minute
	trimTimeout = 10 * time.Second
	trimMost    = 1_000
)

// RequestTrimmer forgets up to most requests that were answered too long ago to be repeated, and returns how many; store.Store is one.
type RequestTrimmer interface {
	TrimRequests(ctx context.Context, most int) (int, error)
}

// Housekeeper frees space.
type Housekeeper struct {
	store RequestTrimmer
	clk   clock.Clock
	log   *zap.Logger
}

// NewHousekeeper returns a Housekeeper.
func NewHousekeeper(store RequestTrimmer, clk clock.Clock, log *zap.Logger) *Housekeeper {
	return &Housekeeper{store: store, clk: clk, log: log}
}

// Run frees space each minute until ctx ends. What fails is tried again with the next round.
func (h *Housekeeper) Run(ctx context.Context) error {
	tick := h.clk.NewTicker(trimEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
		for h.trim(ctx) == trimMost {
		}
	}
}

func (h *Housekeeper) trim(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, trimTimeout)
	defer cancel()
	n, err := h.store.TrimRequests(ctx, trimMost)
	if err != nil {
		h.log.Debug("requests not trimmed", zap.Error(err))
		return 0
	}
	return n
}
