package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// PutSubscribers writes how many subscriptions a node serves of each queue, believed for ttl from now by the database's clock. Queues that are left out have
// none any more.
func (c *Control) PutSubscribers(ctx context.Context, node uuid.UUID, counts map[int64]int64, ttl time.Duration) error {
	queues, numbers := make([]int64, 0, len(counts)), make([]int64, 0, len(counts))
	for queue, n := range counts {
		queues, numbers = append(queues, queue), append(numbers, n)
	}
	if err := c.exec(ctx, c.on(), "subscribers_put", node, queues, ttl, numbers); err != nil {
		return fmt.Errorf("put subscribers: %w", err)
	}
	return nil
}

// ExpireSubscribers frees the rows of dispatchers that write them no more.
func (c *Control) ExpireSubscribers(ctx context.Context) error {
	return c.exec(ctx, c.on(), "subscribers_expire")
}
