package loop

import (
	"context"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	// catalogueSegments is how many segments are read in one step where this dispatcher has not seen them itself.
	catalogueSegments = 64
	// catalogueAllEvery is how often every shard is looked at, whoever wrote to it: a dispatcher that died may have left its own behind.
	catalogueAllEvery = 30 * time.Second
	// cataloguePage is how many shards one look brings.
	cataloguePage = 500
)

// catalogue is the table of partitions' names.
type catalogue interface {
	BehindOf(ctx context.Context, shards []message.ShardID) ([]store.Behind, error)
	BehindAfter(ctx context.Context, after message.ShardID, limit int) ([]store.Behind, error)
	Catalogue(ctx context.Context, b store.Behind, upto message.Offset, sightings []store.Sighting) (bool, error)
	CatalogueFromLog(ctx context.Context, b store.Behind, segments int) (store.Behind, error)
}

// Cataloguer writes partitions' names behind the log: never in a flush, and at most about a second later.
type Cataloguer struct {
	db      catalogue
	seen    func() []engine.Seen
	clk     clock.Clock
	log     *zap.Logger
	period  time.Duration
	lastAll time.Time
}

// NewCataloguer returns a Cataloguer. seen hands over what was appended since it was last called.
func NewCataloguer(db catalogue, seen func() []engine.Seen, clk clock.Clock, log *zap.Logger, period time.Duration) *Cataloguer {
	return &Cataloguer{db: db, seen: seen, clk: clk, log: log, period: period}
}

// Run writes until ctx ends.
func (c *Cataloguer) Run(ctx context.Context) error {
	return every(ctx, c.clk, c.period, c.log, "cataloguer", c.Round)
}

// Round enters what was appended since the last round, and now and then what others left behind.
func (c *Cataloguer) Round(ctx context.Context) error {
	stretches := map[message.ShardID]engine.Seen{}
	var shards []message.ShardID
	for _, s := range c.seen() {
		stretches[s.Shard] = s
		shards = append(shards, s.Shard)
	}
	if len(shards) > 0 {
		behind, err := c.db.BehindOf(ctx, shards)
		if err != nil {
			return err
		}
		for _, b := range behind {
			if err := c.catchUp(ctx, b, stretches[b.Shard]); err != nil {
				return err
			}
		}
	}
	if now := c.clk.Now(); c.lastAll.IsZero() || now.Sub(c.lastAll) >= catalogueAllEvery {
		c.lastAll = now
		return c.all(ctx)
	}
	return nil
}

// all catches up with every shard there is.
func (c *Cataloguer) all(ctx context.Context) error {
	for after := message.ShardID(0); ; {
		behind, err := c.db.BehindAfter(ctx, after, cataloguePage)
		if err != nil || len(behind) == 0 {
			return err
		}
		for _, b := range behind {
			if err := c.catchUp(ctx, b, engine.Seen{}); err != nil {
				return err
			}
			after = b.Shard
		}
	}
}

// catchUp enters one shard's log up to its head: from memory where this dispatcher appended what is missing, else by reading it.
func (c *Cataloguer) catchUp(ctx context.Context, b store.Behind, s engine.Seen) error {
	for b.Upto < b.Head {
		if s.From <= b.Upto && b.Upto < s.To {
			ok, err := c.db.Catalogue(ctx, b, s.To, s.Sightings)
			if err != nil || !ok {
				return err
			}
			b.Upto = s.To
			continue
		}
		upto := b.Upto
		var err error
		if b, err = c.db.CatalogueFromLog(ctx, b, catalogueSegments); err != nil || b.Upto == upto {
			return err // no step forward: another dispatcher is at it
		}
	}
	return nil
}
