package store

import (
	"errors"
	"time"

	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
)

// What the cold side refuses. Errors of its methods match these, or are *invalid.Error where input is at fault.
var (
	ErrQueueNotFound      = errors.New("queue not found")
	ErrQueueLeased        = errors.New("messages of the queue are leased")
	ErrGroupNotFound      = errors.New("group not found")
	ErrTooManyGroups      = errors.New("the queue has as many groups as it may have")
	ErrDeadLetterNotFound = errors.New("dead letter not found")
)

// Queue is the row of a live queue, with its options resolved.
type Queue struct {
	ID            int64
	Tenant        tenant.ID
	Name          string
	Options       queue.Options     // what was chosen
	Config        queue.Config      // Options with the defaults
	ConfigVersion int64             // grows with each change; the queue's shard rows carry it
	Placement     int               // which rule finds the shard of a partition
	Shards        []message.ShardID // fixed; never used by another queue
	CreatedAt     time.Time

	keys *Keys // of an encrypted queue, as read with its row; see Usable
}

// Group is the row of a group.
type Group struct {
	queue.Group

	ID        int64
	QueueID   int64
	Shards    []lease.GroupShardID // Shards[i] is its state on the queue's shard i
	CreatedAt time.Time
}

// GroupOptions are what a caller says about a group; a zero field says nothing.
type GroupOptions struct {
	Mode      queue.Mode
	OnFailure queue.OnFailure
	Start     queue.Start
}

// Resolve returns the settings of a new group of that name.
func (o GroupOptions) Resolve(name string) queue.Group {
	g := queue.Group{Name: name, Mode: o.Mode, OnFailure: o.OnFailure, Start: o.Start}
	if g.Mode == "" {
		g.Mode = queue.Ordered
	}
	if g.OnFailure == "" {
		g.OnFailure = queue.Block
	}
	if g.Start.Kind == "" {
		g.Start.Kind = queue.Earliest
	}
	return g
}

// Agrees returns nil if what o says is what g has, else an *invalid.Error with code GROUP_MISMATCH.
func (o GroupOptions) Agrees(g queue.Group) error {
	return g.CheckSame(queue.Group{Mode: o.Mode, OnFailure: o.OnFailure, Start: o.Start})
}
