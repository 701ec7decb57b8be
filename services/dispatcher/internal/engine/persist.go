package engine

import (
	"context"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

// persist repeats something that may be done twice, such as a look-up, while the database is away: as long as commits are tried again, and as the caller
// waits.
func persist[T any](ctx context.Context, e *Engine, do func(context.Context) (T, error)) (T, error) {
	end := e.clk.Now().Add(e.cfg.Patience)
	for n := 0; ; n++ {
		v, err := do(ctx)
		if err == nil || ctx.Err() != nil || !retryable(err) && !pg.IsOutcomeUnknown(err) || e.clk.Now().After(end) {
			return v, err
		}
		e.trouble("look-up", err)
		if e.pauseBetween(ctx, n) != nil {
			return v, err
		}
	}
}

// queue looks a queue up, and makes it if that is wanted. One whose messages cannot be read or written here, for want of a key, is refused.
func (e *Engine) queue(ctx context.Context, t tenant.ID, name string, create bool) (*catalog.Queue, error) {
	q, err := persist(ctx, e, func(ctx context.Context) (*catalog.Queue, error) { return e.catalog.Queue(ctx, t, name, create) })
	if err != nil {
		return nil, err
	}
	return q, e.usable(q)
}

// groupRow looks a group up, made if need be.
func (e *Engine) groupRow(ctx context.Context, q *catalog.Queue, name string, options store.GroupOptions) (*catalog.Group, error) {
	return persist(ctx, e, func(ctx context.Context) (*catalog.Group, error) { return e.catalog.Group(ctx, q, name, options) })
}

// ownerOf looks up whose group-shard it is.
func (e *Engine) ownerOf(ctx context.Context, id window.GroupShardID) (store.OwnedGroup, error) {
	return persist(ctx, e, func(ctx context.Context) (store.OwnedGroup, error) {
		ctx, cancel := context.WithTimeout(ctx, e.cfg.StatementTimeout)
		defer cancel()
		return e.control.GroupOfShard(ctx, id)
	})
}
