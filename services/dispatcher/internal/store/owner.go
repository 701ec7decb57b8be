package store

import (
	"context"
	"errors"

	"postrider.dev/services/dispatcher/internal/domain/lease"
)

// OwnedGroup is a group with its queue.
type OwnedGroup struct {
	Queue Queue
	Group Group
}

// GroupOfShard returns whose state a group-shard is, for one who has nothing but its id: a token, or a lease that ran out. The error matches
// ErrGroupNotFound if the group, or its queue, was deleted.
func (c *Control) GroupOfShard(ctx context.Context, id lease.GroupShardID) (OwnedGroup, error) {
	g, err := c.oneGroup(ctx, c.on(), "group_of_shard", id)
	if err != nil {
		return OwnedGroup{}, err
	}
	q, err := c.oneQueue(ctx, c.on(), "queue_by_id", g.QueueID)
	if errors.Is(err, ErrQueueNotFound) {
		return OwnedGroup{}, ErrGroupNotFound
	}
	return OwnedGroup{Queue: q, Group: g}, err
}
