// Package loop holds what the ingress does again and again.
package loop

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/ingress/internal/domain"
)

const (
	bootstrapEvery   = 200 * time.Millisecond
	bootstrapTimeout = 5 * time.Second
)

// KeyEnsurer makes a key exist; store.Store is one.
type KeyEnsurer interface {
	EnsureKey(ctx context.Context, by tenant.Caller, key domain.APIKey) error
}

// Bootstrap makes the administrator's key of the configuration exist. It tries until it has: the audit schema that its entry goes to may be made by another
// service that starts at the same moment.
type Bootstrap struct {
	store KeyEnsurer
	key   domain.Key
	clk   clock.Clock
	log   *zap.Logger
	done  atomic.Bool
}

// NewBootstrap returns a Bootstrap for the key.
func NewBootstrap(store KeyEnsurer, key domain.Key, clk clock.Clock, log *zap.Logger) *Bootstrap {
	return &Bootstrap{store: store, key: key, clk: clk, log: log}
}

// Done reports whether the key exists.
func (b *Bootstrap) Done() bool { return b.done.Load() }

// Run makes the key exist and then waits for the end of ctx.
func (b *Bootstrap) Run(ctx context.Context) error {
	by := tenant.Caller{Tenant: tenant.Default, Actor: "config", Role: tenant.Admin}
	record := domain.APIKey{
		ID: b.key.ID, Tenant: tenant.Default, Name: "administrator of the configuration", Role: tenant.Admin, Hash: b.key.Hash(),
	}
	for warned := false; ctx.Err() == nil; warned = true {
		err := b.ensure(ctx, by, record)
		if err == nil {
			b.done.Store(true)
			<-ctx.Done()
			return nil
		}
		if !warned {
			b.log.Warn("the administrator's key cannot be written yet", zap.Error(err))
		}
		_ = b.clk.Sleep(ctx, bootstrapEvery) // the loop looks at ctx
	}
	return nil
}

func (b *Bootstrap) ensure(ctx context.Context, by tenant.Caller, record domain.APIKey) error {
	ctx, cancel := context.WithTimeout(ctx, bootstrapTimeout)
	defer cancel()
	return b.store.EnsureKey(ctx, by, record)
}
