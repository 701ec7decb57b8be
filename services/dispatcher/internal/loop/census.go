package loop

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/dispatcher/internal/domain/route"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	// censusEvery is how soon a change of the number of subscribers is written; the first of a queue is written at once.
	censusEvery = time.Second
	// censusRenew is how often it is written, and routes are looked at, although nothing has changed, and censusTTL how long it is believed.
	censusRenew = 5 * time.Second
	censusTTL   = 15 * time.Second
)

// register keeps how many subscriptions each dispatcher serves, and which one each queue is routed to.
type register interface {
	PutSubscribers(ctx context.Context, node uuid.UUID, counts map[int64]int64, ttl time.Duration) error
	ExpireSubscribers(ctx context.Context) error
	ClaimRoutes(ctx context.Context, self route.Node, queues []int64) ([]store.QueueName, error)
}

// served is what this dispatcher serves of the queues that have subscribers here.
type served interface {
	// Subscribers counts them, by queue.
	Subscribers() map[int64]int64
	// FirstSubscribers gets a token when a queue that had none may have some.
	FirstSubscribers() <-chan struct{}
}

// Census writes how many subscriptions this dispatcher serves of each queue, and then claims their routes: a host that has consumers is where a queue is best
// served. What is written comes first, since it is what keeps a route from the others.
type Census struct {
	db      register
	served  served
	node    uuid.UUID
	self    route.Node
	taken   func(store.QueueName)
	clk     clock.Clock
	log     *zap.Logger
	written map[int64]int64
	at      time.Time
}

// NewCensus returns a Census of what the dispatcher's process node on a host serves. taken is told of each route it has got; it MUST NOT block.
func NewCensus(db register, s served, node uuid.UUID, host string, taken func(store.QueueName), clk clock.Clock, log *zap.Logger) *Census {
	return &Census{db: db, served: s, node: node, self: route.Node{ID: node.String(), Host: host}, taken: taken, clk: clk, log: log}
}

// Run writes until ctx ends, and then that there are none any more.
func (c *Census) Run(ctx context.Context) error {
	err := everyOr(ctx, c.clk, censusEvery, c.served.FirstSubscribers(), c.log, "census", c.Round)
	if len(c.written) > 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), censusEvery)
		defer cancel()
		_ = c.db.PutSubscribers(ctx, c.node, nil, censusTTL) // else it expires
	}
	return err
}

// Round writes what has changed, or all of it now and then. Without subscribers it does nothing.
func (c *Census) Round(ctx context.Context) error {
	now, counts := c.clk.Now(), c.served.Subscribers()
	changed := !maps.Equal(counts, c.written)
	if !changed && (len(counts) == 0 || now.Sub(c.at) < censusRenew) {
		return nil
	}
	if err := c.db.PutSubscribers(ctx, c.node, counts, censusTTL); err != nil {
		return err
	}
	if len(counts) > 0 {
		won, err := c.db.ClaimRoutes(ctx, c.self, slices.Sorted(maps.Keys(counts)))
		if err != nil {
			return err
		}
		for _, q := range won {
			c.taken(q)
		}
	}
	c.written, c.at = counts, now
	return c.db.ExpireSubscribers(ctx)
}
