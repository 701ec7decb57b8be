package store

import (
	"context"

	"postrider.dev/services/dispatcher/internal/domain/route"
)

// Statement returns the text of one statement.
func Statement(name string) string { return readBook().text(name) }

// TakeRoutes is takeRoutes.
func (c *Control) TakeRoutes(ctx context.Context, self route.Node, queues, epochs []int64) ([]QueueName, error) {
	return c.takeRoutes(ctx, self, queues, epochs)
}
