package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
)

// LogBounds is what a shard holds, [Tail, Head), and where in it a reader begins.
type LogBounds struct {
	Shard             message.ShardID
	Tail, Head, Start message.Offset
}

// LogBounds reads where a reader of q begins that wants what start says, of one moment: what commits later has a higher offset than every Head. The error
// matches ErrQueueNotFound if the shards are gone.
func (c *Control) LogBounds(ctx context.Context, q Queue, start queue.Start) ([]LogBounds, error) {
	var out []LogBounds
	err := c.inSnapshot(ctx, func(tx pg.Tx) error {
		rows, err := tx.Query(ctx, c.s.sql.text("shard_bounds"), q.Shards)
		if err != nil {
			return fmt.Errorf("read shards: %w", err)
		}
		out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (b LogBounds, err error) {
			return b, row.Scan(&b.Shard, &b.Tail, &b.Head)
		})
		if err != nil {
			return fmt.Errorf("read shards: %w", err)
		}
		if len(out) != len(q.Shards) {
			return ErrQueueNotFound
		}
		var starts []int64
		if start.Kind == queue.AtTime {
			if starts, err = c.startsAt(ctx, tx, "from", q.Shards, start.Time); err != nil {
				return err
			}
		}
		for i := range out {
			switch start.Kind {
			case queue.AtTime:
				out[i].Start = message.Offset(starts[i])
			case queue.Earliest:
				out[i].Start = out[i].Tail
			default:
				out[i].Start = out[i].Head
			}
		}
		return nil
	})
	return out, err
}
