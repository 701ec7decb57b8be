package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// MaxWork is how many changes one transaction may hold.
const MaxWork = 128

var (
	errTooMuchWork     = errors.New("too many changes for one transaction")
	errRepeatedChange  = errors.New("two changes of one group-shard in one transaction")
	errUnnamedDeadText = errors.New("a dead letter without id or reason")
)

// WorkResult says what became of one change.
type WorkResult struct {
	Applied bool
	Stamp   window.Stamp  // of an applied change
	Now     window.DBTime // the database's clock, in any case; of a change that has to wait, the reading that it was judged by
}

// Early says that a change was not applied, and that its time may not have come. If false, the row was of another version, or gone.
func (r WorkResult) Early(c *window.Change) bool { return !r.Applied && r.Now < c.NotBefore }

// Work applies changes of different group-shards, at most MaxWork, in one transaction and one round trip, each on its own condition: one whose version is
// another, or whose time has not come, does nothing and harms no other. Results have the indexes of changes. When Work returns nil, what is Applied is
// durable; on any other error nothing is, unless pg.IsOutcomeUnknown.
func (s *Store) Work(ctx context.Context, changes []window.Change) ([]WorkResult, error) {
	order, err := workOrder(changes)
	if err != nil || len(changes) == 0 {
		return nil, err
	}
	results := make([]WorkResult, len(changes))
	err = s.write(ctx, func(conn *pgxpool.Conn) error {
		clear(results)
		batch := &pgx.Batch{}
		for _, i := range order {
			s.queueChange(batch, &changes[i], &results[i])
		}
		return pg.CommitError(conn.SendBatch(ctx, batch).Close())
	})
	if err != nil {
		return nil, fmt.Errorf("work: %w", err)
	}
	return results, nil
}

// workOrder returns the indexes of changes in the order in which their rows are to be locked.
func workOrder(changes []window.Change) ([]int, error) {
	if len(changes) > MaxWork {
		return nil, fmt.Errorf("work: %d: %w", len(changes), errTooMuchWork)
	}
	order := make([]int, len(changes))
	for i := range changes {
		order[i] = i
		if err := checkChange(&changes[i]); err != nil {
			return nil, fmt.Errorf("work: %w", err)
		}
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(changes[a].ID, changes[b].ID) })
	for i := 1; i < len(order); i++ {
		if changes[order[i]].ID == changes[order[i-1]].ID {
			return nil, fmt.Errorf("work: group-shard %d: %w", changes[order[i]].ID, errRepeatedChange)
		}
	}
	return order, nil
}

// checkChange finds what the caller forgot.
func checkChange(c *window.Change) error {
	for i := range c.DeadLetters {
		if d := &c.DeadLetters[i]; d.ID == [16]byte{} || d.Reason.Code() == "" {
			return fmt.Errorf("group-shard %d, offset %d: %w", c.ID, d.Offset, errUnnamedDeadText)
		}
	}
	return nil
}

// queueChange adds a change to the batch; its answer goes to result.
func (s *Store) queueChange(batch *pgx.Batch, c *window.Change, result *WorkResult) {
	text, args := s.work.statement(c)
	batch.Queue(text, args...).QueryRow(func(row pgx.Row) error {
		var at *time.Time
		var now time.Time
		if err := row.Scan(&at, &now); err != nil {
			return err
		}
		*result = WorkResult{Applied: at != nil, Now: window.DBTimeOf(now)}
		if at != nil {
			result.Stamp.At = window.DBTimeOf(*at)
		}
		return nil
	})
}
