package server

import (
	"context"

	"postrider.dev/pkg/tenant"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/store"
)

// Engine serves the hot verbs. The requests it is given have been validated (validate.go); it MUST NOT change them and MAY keep their payloads only until
// it answers. Its errors are those of domain, store and engine: errors.go makes wire errors of them.
type Engine interface {
	// PushAsync calls answer exactly once, from any goroutine.
	PushAsync(ctx context.Context, t tenant.ID, req *queuev1.PushRequest, answer func(*queuev1.PushResponse, error))
	Pop(ctx context.Context, t tenant.ID, req *queuev1.PopRequest) (*queuev1.PopResponse, error)
	// SettleOnly does with req.Settle what Pop would, and hands out nothing.
	SettleOnly(ctx context.Context, t tenant.ID, req *queuev1.PopRequest) (*queuev1.PopResponse, error)
	Ack(ctx context.Context, t tenant.ID, req *queuev1.AckRequest) (*queuev1.AckResponse, error)
	Renew(ctx context.Context, t tenant.ID, req *queuev1.RenewRequest) (*queuev1.RenewResponse, error)
	Release(ctx context.Context, t tenant.ID, req *queuev1.ReleaseRequest) (*queuev1.ReleaseResponse, error)
	// Undelivered gives back the lease of an answer that could not be sent, without waiting.
	Undelivered(t tenant.ID, queue string, resp *queuev1.PopResponse)
	// Drain sends parked pops away.
	Drain()
	// Spool returns the state of the spool; false if there is none.
	Spool() (engine.SpoolState, bool)
}

// Log reads the logs of queues for subscribers. Its errors are those of domain, store and engine.
type Log interface {
	// LocateLog finds the queue's id, and in each of its shards where a reader begins that wants what start says.
	LocateLog(ctx context.Context, t tenant.ID, name string, start queue.Start, create bool) (int64, []store.LogBounds, error)
	// ReadLog returns the next page of a shard; one without a next says that the log ends there.
	ReadLog(ctx context.Context, t tenant.ID, name string, id int64, shard int, from message.Offset) (*dispatcherv1.LogPage, error)
	// Follow begins to follow a queue from the offsets given, one a shard.
	Follow(ctx context.Context, t tenant.ID, name string, id int64, from []message.Offset) (*engine.Tail, error)
}

// Routes is the registry of routes.
type Routes interface {
	// FindRoutes returns the addresses of the dispatchers that queues are routed to, by queue; one that is routed to none is left out.
	FindRoutes(ctx context.Context, t tenant.ID, queues []string) (map[string]string, error)
}

// Notifier is told what a control action changed, after its commit. Its methods MUST NOT block. What it does not pass on costs latency only.
type Notifier interface {
	// QueueChanged says that the configuration or the groups of a queue changed, or that it was deleted: drop what is cached of it here, and hint others.
	QueueChanged(t tenant.ID, queue string, deleted bool)
	// Appended says that messages were appended outside the engine's own flushes: wake pops that wait here, and hint others.
	Appended(t tenant.ID, queue string, heads map[message.ShardID]message.Offset)
}

// Transactor does transactions. The requests it is given have been validated; it MUST NOT change them. Its errors are those of domain, store and engine.
type Transactor interface {
	// Transact does all of the request in one commit, once for the key, or nothing.
	Transact(ctx context.Context, t tenant.ID, key string, req *queuev1.TransactRequest) (resp *queuev1.TransactResponse, replayed bool, err error)
}
