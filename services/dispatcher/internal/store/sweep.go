package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// A sweep looks this far behind the last one that left nothing, and over everything once in sweepAllEvery: a lease may be committed after its own end.
const (
	sweepBehind   = 5 * time.Second
	sweepAllEvery = time.Minute
)

// Expired is a group-shard with leases that ran out.
type Expired struct {
	GroupShard window.GroupShardID
	Group      int64
	Shard      message.ShardID
	Leases     int
	Since      window.DBTime // when the first of them ran out
}

// sweeper remembers, in database time, how far the leases were swept.
type sweeper struct {
	mu    sync.Mutex // guards all below
	clean time.Time  // no overdue lease was left that ended before
	all   time.Time  // of the last sweep over everything
}

// from returns where a sweep begins.
func (w *sweeper) from() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.clean.IsZero() || w.clean.Sub(w.all) >= sweepAllEvery {
		return time.Unix(0, 0)
	}
	return w.clean.Add(-sweepBehind)
}

// swept notes what a sweep from an instant found.
func (w *sweeper) swept(from, now time.Time, found []Expired) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if from.Unix() == 0 {
		w.all = now
	}
	w.clean = now
	if len(found) > 0 && found[0].Since.Time().Before(now) {
		w.clean = found[0].Since.Time()
	}
}

// ExpiredLeases returns up to limit group-shards that have leases to reclaim by the database's clock, the longest overdue first.
func (s *Store) ExpiredLeases(ctx context.Context, limit int) ([]Expired, error) {
	from := s.sweeper.from()
	var found []Expired
	var e Expired
	var since, now time.Time
	rows, err := s.db.Query(ctx, s.sql.text("expired_leases"), from, limit)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&e.GroupShard, &e.Group, &e.Shard, &e.Leases, &since, &now}, func() error {
			e.Since = window.DBTimeOf(since)
			found = append(found, e)
			return nil
		})
	}
	if err == nil && len(found) == 0 {
		err = s.db.QueryRow(ctx, s.sql.text("now")).Scan(&now)
	}
	if err != nil {
		return nil, fmt.Errorf("read expired leases: %w", err)
	}
	s.sweeper.swept(from, now, found)
	return found, nil
}
