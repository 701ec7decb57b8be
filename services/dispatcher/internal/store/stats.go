package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// QueueStats is what a queue holds, of one moment.
type QueueStats struct {
	QueueID     int64
	Messages    int64 // in the log
	StoredBytes int64 // as stored: compressed
	Groups      int
	Depth       int64 // most messages unsettled in a group; Messages where there is no group
	DeadLetters int64 // not redriven
	Delayed     int64 // accepted and not due yet; not among Messages
	Subscribers int64 // on all dispatchers
	Dropped     int64 // messages trimmed before a group had settled them, over all groups
}

// GroupStats is the state of a group, of one moment.
type GroupStats struct {
	GroupID     int64
	Depth       int64 // not settled
	Lag         int64 // between the first unsettled and the newest
	Leases      int64
	Leased      int64 // messages in leases
	Retrying    int64 // waiting for their time
	DeadLetters int64 // not redriven
	Lost        int64 // trimmed before they were settled

	FirstAvailable []int64   // by shard: where the log begins
	ActiveAt       time.Time // when a consumer did something last
	since          time.Time // since when something is there that was not settled; zero: nothing
	now            time.Time
}

// Expired says that the group left messages alone for longer than after; see retention.Expired.
func (s GroupStats) Expired(after time.Duration) bool {
	if s.since.IsZero() {
		return false
	}
	idle := s.since
	if s.ActiveAt.After(idle) {
		idle = s.ActiveAt
	}
	return s.now.Sub(idle) > after
}

// ShardStats is the state of one log.
type ShardStats struct {
	Shard      message.ShardID
	Head, Tail message.Offset
	LastPushAt time.Time // zero: never
}

// QueueStats returns what each of the queues holds, by id. Those that are gone are left out.
func (c *Control) QueueStats(ctx context.Context, queues []int64) (map[int64]QueueStats, error) {
	rows, err := c.on().Query(ctx, c.s.sql.text("queue_stats"), queues)
	if err != nil {
		return nil, fmt.Errorf("queue stats: %w", err)
	}
	out := make(map[int64]QueueStats, len(queues))
	var s QueueStats
	into := []any{&s.QueueID, &s.Messages, &s.StoredBytes, &s.Groups, &s.Depth, &s.DeadLetters, &s.Delayed, &s.Subscribers, &s.Dropped}
	_, err = pgx.ForEachRow(rows, into, func() error {
		out[s.QueueID] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("queue stats: %w", err)
	}
	return out, nil
}

// QueueDetail is everything GetQueue shows, of one moment.
type QueueDetail struct {
	Stats  QueueStats
	Shards []ShardStats
	Groups []Group // by name
	States map[int64]GroupStats
}

// QueueDetail reads what a queue and its groups hold. The parts agree with one another. The error matches ErrQueueNotFound if the queue is gone.
func (c *Control) QueueDetail(ctx context.Context, q Queue) (QueueDetail, error) {
	var d QueueDetail
	err := c.inSnapshot(ctx, func(tx pg.Tx) error {
		d = QueueDetail{States: make(map[int64]GroupStats)}
		err := tx.QueryRow(ctx, c.s.sql.text("queue_stats"), []int64{q.ID}).
			Scan(&d.Stats.QueueID, &d.Stats.Messages, &d.Stats.StoredBytes, &d.Stats.Groups, &d.Stats.Depth, &d.Stats.DeadLetters, &d.Stats.Delayed,
				&d.Stats.Subscribers, &d.Stats.Dropped)
		if pg.IsNoRows(err) {
			return ErrQueueNotFound
		}
		if err != nil {
			return fmt.Errorf("queue stats: %w", err)
		}
		if d.Shards, err = c.shardStats(ctx, tx, q.Shards); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, c.s.sql.text("group_list"), q.ID)
		if err != nil {
			return fmt.Errorf("list groups: %w", err)
		}
		if d.Groups, err = pgx.CollectRows(rows, scanGroup); err != nil {
			return fmt.Errorf("list groups: %w", err)
		}
		d.States, err = c.groupStats(ctx, tx, q.ID, "")
		return err
	})
	return d, err
}

// GroupStats reads the state of one group; a group that is gone has none.
func (c *Control) GroupStats(ctx context.Context, g Group) (GroupStats, error) {
	var all map[int64]GroupStats
	err := c.inSnapshot(ctx, func(tx pg.Tx) error {
		var err error
		all, err = c.groupStats(ctx, tx, g.QueueID, g.Name)
		return err
	})
	return all[g.ID], err
}

// groupStats needs a transaction of one snapshot.
func (c *Control) groupStats(ctx context.Context, tx pg.Tx, queueID int64, group string) (map[int64]GroupStats, error) {
	rows, err := tx.Query(ctx, c.s.sql.text("group_stats"), queueID, group)
	if err != nil {
		return nil, fmt.Errorf("group stats: %w", err)
	}
	out := make(map[int64]GroupStats)
	var s GroupStats
	var since *time.Time
	into := []any{
		&s.GroupID, &s.Depth, &s.Lag, &s.Leases, &s.Retrying, &s.DeadLetters, &s.Lost, &s.FirstAvailable, &s.ActiveAt, &since, &s.now,
	}
	_, err = pgx.ForEachRow(rows, into, func() error {
		s.ActiveAt, s.since = s.ActiveAt.UTC(), orZero(since)
		out[s.GroupID] = s
		s.FirstAvailable = nil
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("group stats: %w", err)
	}
	return out, c.addLeased(ctx, tx, queueID, group, out)
}

// addLeased counts the messages in leases.
func (c *Control) addLeased(ctx context.Context, tx pg.Tx, queueID int64, group string, into map[int64]GroupStats) error {
	rows, err := tx.Query(ctx, c.s.sql.text("group_lease_entries"), queueID, group)
	if err != nil {
		return fmt.Errorf("count leased messages: %w", err)
	}
	var id int64
	var entries []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &entries}, func() error {
		_, open, err := window.DecodeEntries(entries)
		s := into[id]
		s.Leased += int64(len(open))
		into[id] = s
		return err
	})
	if err != nil {
		return fmt.Errorf("count leased messages: %w", err)
	}
	return nil
}

func (c *Control) shardStats(ctx context.Context, tx pg.Tx, shards []message.ShardID) ([]ShardStats, error) {
	rows, err := tx.Query(ctx, c.s.sql.text("shard_stats"), shards)
	if err != nil {
		return nil, fmt.Errorf("shard stats: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (ShardStats, error) {
		var s ShardStats
		var at *time.Time
		err := row.Scan(&s.Shard, &s.Head, &s.Tail, &at)
		if at != nil {
			s.LastPushAt = at.UTC()
		}
		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("shard stats: %w", err)
	}
	return out, nil
}
