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

// sweepPages bounds how many pages of leases that belong to deleted groups one sweep passes over; the next goes on behind them.
const sweepPages = 32

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
	cut   stretch    // a sweep that is to go on; zero if there is none
}

// stretch is a part of a sweep: all that ended after at, of all that ended after from.
type stretch struct{ from, at time.Time }

// next returns what to sweep.
func (w *sweeper) next() stretch {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.cut.at.IsZero() {
		return w.cut
	}
	from := w.clean.Add(-sweepBehind)
	if w.clean.IsZero() || w.clean.Sub(w.all) >= sweepAllEvery {
		from = time.Unix(0, 0)
	}
	return stretch{from: from, at: from}
}

// later notes a sweep that found nothing so far and is not at its end.
func (w *sweeper) later(s stretch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = s
}

// swept notes what a sweep found: something, or nothing up to its end.
func (w *sweeper) swept(from, now time.Time, found []Expired) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = stretch{}
	if from.Unix() == 0 {
		w.all = now
	}
	w.clean = now
	if len(found) > 0 && found[0].Since.Time().Before(now) {
		w.clean = found[0].Since.Time()
	}
}

// ExpiredLeases returns up to limit group-shards that have leases to reclaim by the database's clock, the longest overdue first. None may mean, too, that
// there are very many leases of deleted groups, and that the next call goes on behind them.
func (s *Store) ExpiredLeases(ctx context.Context, limit int) ([]Expired, error) {
	sweep := s.sweeper.next()
	for range sweepPages {
		page, err := s.expiredAfter(ctx, sweep.at, limit)
		if err != nil {
			return nil, err
		}
		if len(page.found) > 0 || !page.full {
			s.sweeper.swept(sweep.from, page.now, page.found)
			return page.found, nil
		}
		// Others may have ended in the last instant of the page. More than a page of one instant are left to the sweep over everything.
		if again := page.upto.Add(-time.Microsecond); again.After(sweep.at) {
			sweep.at = again
		} else {
			sweep.at = page.upto
		}
	}
	s.sweeper.later(sweep)
	return nil, nil
}

// expiredPage is what was found among the first overdue leases after an instant.
type expiredPage struct {
	found     []Expired
	full      bool      // there may be more behind upto
	upto, now time.Time // of the last that was looked at; of the look
}

func (s *Store) expiredAfter(ctx context.Context, after time.Time, limit int) (expiredPage, error) {
	var page expiredPage
	var e Expired
	var since time.Time
	rows, err := s.db.Query(ctx, s.sql.text("expired_leases"), after, limit)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&e.GroupShard, &e.Group, &e.Shard, &e.Leases, &since, &page.full, &page.upto, &page.now}, func() error {
			e.Since = window.DBTimeOf(since)
			if e.GroupShard != 0 {
				page.found = append(page.found, e)
			}
			return nil
		})
	}
	if err != nil {
		return page, fmt.Errorf("read expired leases: %w", err)
	}
	return page, nil
}
