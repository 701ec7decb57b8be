package loop

import (
	"context"
	"maps"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
)

const (
	// censusEvery is how soon a change of the number of subscribers is written.
	censusEvery = time.Second
	// censusRenew is how often it is written although nothing has changed, and censusTTL how long it is believed.
	censusRenew = 5 * time.Second
	censusTTL   = 15 * time.Second
)

// register keeps how many subscriptions each dispatcher serves.
type register interface {
	PutSubscribers(ctx context.Context, node uuid.UUID, counts map[int64]int64, ttl time.Duration) error
	ExpireSubscribers(ctx context.Context) error
}

// Census writes how many subscriptions this dispatcher serves of each queue.
type Census struct {
	db      register
	count   func() map[int64]int64
	node    uuid.UUID
	clk     clock.Clock
	log     *zap.Logger
	written map[int64]int64
	at      time.Time
}

// NewCensus returns a Census of what count says, by queue.
func NewCensus(db register, count func() map[int64]int64, node uuid.UUID, clk clock.Clock, log *zap.Logger) *Census {
	return &Census{db: db, count: count, node: node, clk: clk, log: log}
}

// Run writes until ctx ends, and then that there are none any more.
func (c *Census) Run(ctx context.Context) error {
	err := every(ctx, c.clk, censusEvery, c.log, "census", c.Round)
	if len(c.written) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), censusEvery)
		defer cancel()
		_ = c.db.PutSubscribers(ctx, c.node, nil, censusTTL) // else it expires
	}
	return err
}

// Round writes what has changed, or all of it now and then. Without subscribers it does nothing.
func (c *Census) Round(ctx context.Context) error {
	now, counts := c.clk.Now(), c.count()
	changed := !maps.Equal(counts, c.written)
	if !changed && (len(counts) == 0 || now.Sub(c.at) < censusRenew) {
		return nil
	}
	if err := c.db.PutSubscribers(ctx, c.node, counts, censusTTL); err != nil {
		return err
	}
	c.written, c.at = counts, now
	return c.db.ExpireSubscribers(ctx)
}
