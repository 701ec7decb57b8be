package ingress

import (
	"context"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/services/ingress/internal/server"
	"postrider.dev/services/ingress/internal/store"
)

// adminStore is the store as the surface wants it: what runs once runs on the surface's own interface.
type adminStore struct{ *store.Store }

// Once implements idempotency.Keeper.
func (a adminStore) Once(ctx context.Context, req idempotency.Request, do func(server.AdminVerbs) ([]byte, error)) ([]byte, bool, error) {
	return a.Store.Once(ctx, req, func(in *store.Store) ([]byte, error) { return do(in) })
}
