// Package loop repeats what has to happen although nobody asks: taking back leases that ran out, writing the catalogue of partitions behind the log, and
// freeing what nothing refers to any more. Any number of dispatchers may do the same at the same time; the rows' locks and conditions decide.
package loop

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
)

// every runs fn, now and then each time a jittered period has passed, until ctx ends. A failure is logged and costs a round.
func every(ctx context.Context, clk clock.Clock, period time.Duration, log *zap.Logger, what string, fn func(context.Context) error) error {
	return everyOr(ctx, clk, period, nil, log, what, fn)
}

// everyOr is every, with a round also at each token of early.
func everyOr(
	ctx context.Context, clk clock.Clock, period time.Duration, early <-chan struct{}, log *zap.Logger, what string, fn func(context.Context) error,
) error {
	for awake := true; awake; awake = ctx.Err() == nil {
		if err := fn(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, context.Canceled) {
			log.Warn("round failed", zap.String("part", what), zap.Error(err))
		}
		clock.Rest(ctx, clk, clock.Jitter(clock.Random{}, period, 0.1), early)
	}
	return nil
}
