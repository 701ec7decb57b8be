package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/settled"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// Tombstones returns which messages of [from, to) were deleted. What was deleted before it was called is among them.
func (s *Store) Tombstones(ctx context.Context, shard message.ShardID, from, to message.Offset) (*settled.Marks, error) {
	return s.tombstones(ctx, s.db, shard, from, to)
}

func (s *Store) tombstones(ctx context.Context, on querier, shard message.ShardID, from, to message.Offset) (*settled.Marks, error) {
	rows, err := on.Query(ctx, s.sql.text("tombstones"), shard, from, to)
	if err != nil {
		return nil, fmt.Errorf("read tombstones: %w", err)
	}
	marks := &settled.Marks{}
	var at message.Offset
	if _, err := pgx.ForEachRow(rows, []any{&at}, func() error {
		marks.Add(at)
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read tombstones: %w", err)
	}
	return marks, nil
}

// hideDeleted settles in a group that was made by the same transaction what was deleted before.
func (c *Control) hideDeleted(ctx context.Context, tx pg.Tx, q Queue, g Group) error {
	for i, shard := range q.Shards {
		marks, err := c.s.tombstones(ctx, tx, shard, 0, window.MaxOffset)
		if err != nil {
			return err
		}
		if marks.Chunks() == 0 {
			continue
		}
		v, now, err := c.lockedView(ctx, tx, g.Shards[i], policyOf(q, g))
		if err != nil {
			return err
		}
		if _, err := c.changeView(ctx, tx, v, now, &window.Seek{To: v.Low(), Deleted: marks}); err != nil {
			return err
		}
	}
	return nil
}
