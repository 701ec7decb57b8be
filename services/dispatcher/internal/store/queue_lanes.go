package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/placement"
)

// Layout says how the queue's shards are arranged.
func (q *Queue) Layout() placement.Layout { return placement.Of(q.Config.Lanes, len(q.Shards)) }

// ShardOf is the shard of messages with this priority of a partition with this hash.
func (q *Queue) ShardOf(priority int, hash uint64) message.ShardID {
	return q.Shards[q.Layout().Shard(priority, hash)]
}

// PriorityOf is the priority of the messages of a shard; 0 for a shard of another queue.
func (q *Queue) PriorityOf(shard message.ShardID) int {
	return q.Layout().Priority(max(slices.Index(q.Shards, shard), 0))
}

// placeLetters fills in the priorities of dead letters. Those of a deleted queue are told by its row, which stays as long as they do.
func (c *Control) placeLetters(ctx context.Context, on querier, letters []DeadLetter) error {
	var ids []int64
	for i := range letters {
		if !slices.Contains(ids, letters[i].QueueID) {
			ids = append(ids, letters[i].QueueID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	rows, err := on.Query(ctx, c.s.sql.text("queue_rows"), ids)
	if err != nil {
		return fmt.Errorf("read queues: %w", err)
	}
	queues, err := pgx.CollectRows(rows, c.scanQueue)
	if err != nil {
		return fmt.Errorf("read queues: %w", err)
	}
	for i := range letters {
		d := &letters[i]
		for j := range queues {
			if queues[j].ID == d.QueueID {
				d.Priority = queues[j].PriorityOf(d.Shard)
			}
		}
	}
	return nil
}
