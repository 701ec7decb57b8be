package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/route"
)

// QueueName names a queue of a tenant.
type QueueName struct {
	Tenant tenant.ID
	Queue  string
}

// Route is a queue's entry in the registry.
type Route struct {
	route.Record
	Host      string // of the node; empty when it is not online
	ClaimedAt time.Time
}

// ClaimRoutes takes the routes of those of the queues that route.Facts lets self claim, and returns the names of the queues it has taken. Another that claims
// at the same moment may take some first; then they are its. The host of self MUST have consumers of the queues, and PutSubscribers MUST have written so.
func (c *Control) ClaimRoutes(ctx context.Context, self route.Node, queues []int64) ([]QueueName, error) {
	rows, err := c.on().Query(ctx, c.s.sql.text("route_facts"), queues)
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}
	var ids, epochs []int64
	var id int64
	var f route.Facts
	_, err = pgx.ForEachRow(rows, []any{&id, &f.Record.NodeID, &f.Record.Epoch, &f.Host, &f.Consumed}, func() error {
		if f.Claims(self) {
			ids, epochs = append(ids, id), append(epochs, int64(f.Next(self).Epoch))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read routes: %w", err)
	}
	if len(ids) == 0 {
		return nil, nil
	}
	return c.takeRoutes(ctx, self, ids, epochs)
}

// takeRoutes is the compare-and-set: a route is taken only if its epoch is still the one before.
func (c *Control) takeRoutes(ctx context.Context, self route.Node, queues, epochs []int64) ([]QueueName, error) {
	rows, err := c.on().Query(ctx, c.s.sql.text("route_claim"), self.ID, queues, epochs)
	if err != nil {
		return nil, fmt.Errorf("claim routes: %w", err)
	}
	won, err := pgx.CollectRows(rows, pgx.RowToStructByPos[QueueName])
	if err != nil {
		return nil, fmt.Errorf("claim routes: %w", err)
	}
	return won, nil
}

// FindRoutes returns the addresses of the dispatchers that queues of a tenant are routed to, by queue. A queue without a route, or whose node is not online,
// is left out.
func (c *Control) FindRoutes(ctx context.Context, t tenant.ID, names []string) (map[string]string, error) {
	rows, err := c.on().Query(ctx, c.s.sql.text("route_find"), string(t), names)
	if err != nil {
		return nil, fmt.Errorf("find routes: %w", err)
	}
	out := make(map[string]string)
	var name, address string
	if _, err = pgx.ForEachRow(rows, []any{&name, &address}, func() error {
		out[name] = address
		return nil
	}); err != nil {
		return nil, fmt.Errorf("find routes: %w", err)
	}
	return out, nil
}

// Route returns a queue's entry; the zero value if there is none.
func (c *Control) Route(ctx context.Context, queue int64) (Route, error) {
	var r Route
	err := c.on().QueryRow(ctx, c.s.sql.text("route_get"), queue).Scan(&r.NodeID, &r.Host, &r.Epoch, &r.ClaimedAt)
	if err != nil && !pg.IsNoRows(err) {
		return Route{}, fmt.Errorf("read route: %w", err)
	}
	r.ClaimedAt = r.ClaimedAt.UTC()
	return r, nil
}
