package server

import (
	"context"
	"strings"
	"unicode/utf8"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
)

// maxActor is what an audit entry can hold.
const maxActor = 1024

// Queues is the control side of postrider.queue.v1.QueueService. The hot verbs come through Exchange; here they are not implemented.
type Queues struct {
	queuev1.UnimplementedQueueServiceServer

	control *store.Control
	catalog *catalog.Catalog
	rates   *catalog.Rates
	notify  Notifier

	transact Transactor
}

// NewQueues returns the service.
func NewQueues(control *store.Control, cat *catalog.Catalog, rates *catalog.Rates, notify Notifier, transact Transactor) *Queues {
	return &Queues{control: control, catalog: cat, rates: rates, notify: notify, transact: transact}
}

// caller returns who an authenticated peer says is calling. Without one nothing is done.
func caller(ctx context.Context) (tenant.Caller, error) {
	c, ok := tenant.CallerFrom(ctx)
	if !ok || !c.Tenant.Valid() || c.Actor == "" {
		return tenant.Caller{}, apierr.Unauthenticated(ReasonUnauthenticated, "the call names no tenant or nobody in it")
	}
	if len(c.Actor) > maxActor || !utf8.ValidString(c.Actor) || strings.ContainsRune(c.Actor, 0) { // what cannot be recorded must not happen
		return tenant.Caller{}, apierr.Unauthenticated(ReasonUnauthenticated, "the caller's name cannot be recorded")
	}
	return c, nil
}
