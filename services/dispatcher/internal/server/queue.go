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

// Queues is postrider.queue.v1.QueueService as the dispatcher serves it.
type Queues struct {
	queuev1.UnsafeQueueServiceServer // a call that is added to the contract does not compile until it is written here

	control  *store.Control
	catalog  *catalog.Catalog
	rates    *catalog.Rates
	engine   Engine
	notify   Notifier
	draining <-chan struct{}
}

// NewQueues returns the service. Streams end soon after draining is closed.
func NewQueues(
	control *store.Control, cat *catalog.Catalog, rates *catalog.Rates, engine Engine, notify Notifier, draining <-chan struct{},
) *Queues {
	return &Queues{control: control, catalog: cat, rates: rates, engine: engine, notify: notify, draining: draining}
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

// hot answers one of the engine's verbs.
func hot[Req, Resp any](
	ctx context.Context, req Req, check func(Req) error, do func(context.Context, tenant.ID, Req) (Resp, error),
) (Resp, error) {
	var none Resp
	by, err := caller(ctx)
	if err != nil {
		return none, err
	}
	if err := check(req); err != nil {
		return none, wireError(err)
	}
	resp, err := do(ctx, by.Tenant, req)
	if err != nil {
		return none, wireError(err)
	}
	return resp, nil
}

// Push implements the contract.
func (s *Queues) Push(ctx context.Context, req *queuev1.PushRequest) (*queuev1.PushResponse, error) {
	return hot(ctx, req, validatePush, s.engine.Push)
}

// Pop implements the contract.
func (s *Queues) Pop(ctx context.Context, req *queuev1.PopRequest) (*queuev1.PopResponse, error) {
	return hot(ctx, req, validatePop, s.engine.Pop)
}

// Ack implements the contract.
func (s *Queues) Ack(ctx context.Context, req *queuev1.AckRequest) (*queuev1.AckResponse, error) {
	return hot(ctx, req, validateAck, s.engine.Ack)
}

// Renew implements the contract.
func (s *Queues) Renew(ctx context.Context, req *queuev1.RenewRequest) (*queuev1.RenewResponse, error) {
	return hot(ctx, req, validateRenew, s.engine.Renew)
}

// Release implements the contract.
func (s *Queues) Release(ctx context.Context, req *queuev1.ReleaseRequest) (*queuev1.ReleaseResponse, error) {
	return hot(ctx, req, validateRelease, s.engine.Release)
}
