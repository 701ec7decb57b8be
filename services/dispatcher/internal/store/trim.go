package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/retention"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// QueuesAfter returns up to limit live queues of all tenants by id, after one.
func (c *Control) QueuesAfter(ctx context.Context, after int64, limit int) ([]Queue, error) {
	rows, err := c.on().Query(ctx, c.s.sql.text("trim_queues"), after, limit)
	if err != nil {
		return nil, fmt.Errorf("page over queues: %w", err)
	}
	queues, err := pgx.CollectRows(rows, c.scanQueue)
	if err != nil {
		return nil, fmt.Errorf("page over queues: %w", err)
	}
	return queues, nil
}

// ShardsToTrim reads what shards hold. The argument carries heads that were seen before, 0 where none was; what is gone or sealed is left out.
func (c *Control) ShardsToTrim(ctx context.Context, known map[message.ShardID]message.Offset) (map[message.ShardID]retention.Shard, error) {
	ids, heads := columns(known)
	rows, err := c.on().Query(ctx, c.s.sql.text("trim_shards"), ids, heads)
	if err != nil {
		return nil, fmt.Errorf("read shards: %w", err)
	}
	out := make(map[message.ShardID]retention.Shard, len(known))
	var id message.ShardID
	var s retention.Shard
	var oldest *time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &s.Head, &s.Tail, &s.Bytes, &oldest, &s.Now}, func() error {
		s.Oldest = orZero(oldest)
		out[id] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read shards: %w", err)
	}
	return out, nil
}

// GroupShards are the group-shards of one group, in the order of its queue's shards.
type GroupShards struct {
	Queue, Group int64
	IDs          []window.GroupShardID
}

// GroupsOf returns the groups of queues.
func (c *Control) GroupsOf(ctx context.Context, queues []int64) ([]GroupShards, error) {
	rows, err := c.on().Query(ctx, c.s.sql.text("trim_groups"), queues)
	if err != nil {
		return nil, fmt.Errorf("read groups: %w", err)
	}
	groups, err := pgx.CollectRows(rows, pgx.RowToStructByPos[GroupShards])
	if err != nil {
		return nil, fmt.Errorf("read groups: %w", err)
	}
	return groups, nil
}

// GroupShardState is how far a group is on one shard.
type GroupShardState struct {
	retention.Progress

	Version window.Version
}

// AskedProgress is a group-shard to read, a version it was seen with, and how long a group of its queue may be silent.
type AskedProgress struct {
	ID    window.GroupShardID
	Known window.Version
	After time.Duration
}

// ProgressOf reads how far groups are; what is gone is left out.
func (c *Control) ProgressOf(ctx context.Context, asked []AskedProgress) (map[window.GroupShardID]GroupShardState, error) {
	out := make(map[window.GroupShardID]GroupShardState, len(asked))
	if len(asked) == 0 {
		return out, nil
	}
	ids, known, after := make([]int64, len(asked)), make([]int64, len(asked)), make([]int64, len(asked))
	for i, a := range asked {
		ids[i], known[i], after[i] = int64(a.ID), int64(a.Known), micros(a.After)
	}
	rows, err := c.on().Query(ctx, c.s.sql.text("trim_group_shards"), ids, known, after)
	if err != nil {
		return nil, fmt.Errorf("read progress of groups: %w", err)
	}
	var id window.GroupShardID
	var s GroupShardState
	var since *time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &s.Version, &s.Low, &s.ActiveAt, &since}, func() error {
		s.Since = orZero(since)
		out[id] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read progress of groups: %w", err)
	}
	return out, nil
}

// Trimmed is what one Trim took.
type Trimmed struct {
	Tail     message.Offset // where the log begins now
	Messages int64
	Segments int64
	Bytes    int64
}

// Trim takes up to most whole segments from the beginning of a shard, as the cut says; time is the database's. It takes nothing if another trimmed since at was
// read.
func (c *Control) Trim(ctx context.Context, shard message.ShardID, at retention.Shard, cut retention.Cut, most int) (Trimmed, error) {
	out := Trimmed{Tail: at.Tail}
	err := c.s.db.QueryRow(ctx, c.s.sql.text("trim"), at.Tail, most, shard, at.Head, cut.Newest, micros(cut.Age), cut.Bytes, cut.Settled, cut.Trace).
		Scan(&out.Tail, &out.Segments, &out.Bytes)
	if pg.IsNoRows(err) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("trim shard %d: %w", shard, err)
	}
	out.Messages = int64(out.Tail - at.Tail)
	return out, nil
}

// TrimPartitions looks at up to most names of a queue's catalogue after one, and forgets those whose last message is below its shard's tail. It returns where
// to go on; done says that it was the last page.
func (c *Control) TrimPartitions(
	ctx context.Context, queueID int64, after string, tails map[message.ShardID]message.Offset, most int,
) (next string, done bool, err error) {
	ids, offsets := columns(tails)
	var n int
	var last *string
	if err := c.s.db.QueryRow(ctx, c.s.sql.text("trim_partitions"), queueID, after, most, ids, offsets).Scan(&n, &last); err != nil {
		return after, false, fmt.Errorf("trim catalogue: %w", err)
	}
	if last != nil {
		next = *last
	}
	return next, n < most, nil
}

// Tails returns where shards begin. The argument carries heads that were seen before, or 0.
func (s *Store) Tails(ctx context.Context, known map[message.ShardID]message.Offset) (map[message.ShardID]message.Offset, error) {
	ids, heads := columns(known)
	rows, err := s.db.Query(ctx, s.sql.text("shard_tails"), ids, heads)
	if err != nil {
		return nil, fmt.Errorf("read tails: %w", err)
	}
	out := make(map[message.ShardID]message.Offset, len(known))
	var id message.ShardID
	var tail message.Offset
	if _, err := pgx.ForEachRow(rows, []any{&id, &tail}, func() error {
		out[id] = tail
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read tails: %w", err)
	}
	return out, nil
}

// Depth is what is pending of a queue, and up to which heads it was counted.
type Depth struct {
	Pending int64
	Heads   map[message.ShardID]message.Offset
}

// Depths returns what is pending of each of the queues. Those that are gone are left out.
func (c *Control) Depths(ctx context.Context, queues []int64) (map[int64]Depth, error) {
	rows, err := c.on().Query(ctx, c.s.sql.text("queue_depths"), queues)
	if err != nil {
		return nil, fmt.Errorf("read depths: %w", err)
	}
	out := make(map[int64]Depth, len(queues))
	var id, pending int64
	var ids []message.ShardID
	var heads []message.Offset
	_, err = pgx.ForEachRow(rows, []any{&id, &pending, &ids, &heads}, func() error {
		d := Depth{Pending: pending, Heads: make(map[message.ShardID]message.Offset, len(ids))}
		for i, shard := range ids {
			d.Heads[shard] = heads[i]
		}
		out[id] = d
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read depths: %w", err)
	}
	return out, nil
}

// columns makes two arrays of a map.
func columns[K, V ~int64](m map[K]V) (keys, values []int64) {
	keys, values = make([]int64, 0, len(m)), make([]int64, 0, len(m))
	for k, v := range m {
		keys, values = append(keys, int64(k)), append(values, int64(v))
	}
	return keys, values
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}
