package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// Decide says what to do with a group-shard that is locked. It MUST NOT wait for anything slow, and may run twice. An empty Change writes nothing: the answers
// that were decided on are then as good as committed, since the state was current under the lock.
type Decide func(State) (window.Change, error)

// WorkLocked is the way after a lost race: it locks the row, reads, in later statements, what changed since known, lets decide choose and writes that. It
// returns the change it wrote and what became of it: not applied means that its time has not come. Three round trips. An error of decide is returned
// and nothing is written; ErrGone means that there is no row.
func (s *Store) WorkLocked(ctx context.Context, gs window.GroupShardID, known window.Known, decide Decide) (window.Change, WorkResult, error) {
	var change window.Change
	var result WorkResult
	if err := s.endLost(ctx); err != nil {
		return change, result, fmt.Errorf("work under lock: %w", err)
	}
	err := s.write(ctx, func(conn *pgxpool.Conn) error {
		change, result = window.Change{}, WorkResult{}
		state, err := s.readRow(ctx, conn, "begin", "lock_group_shard", gs, known.Version)
		if err != nil {
			return err
		}
		if err := s.readRest(ctx, conn, &state, known, ""); err != nil {
			return err
		}
		if change, err = decide(state); err != nil {
			return err
		}
		if err := checkChange(&change); err != nil {
			return err
		}
		batch := &pgx.Batch{}
		if change.Empty() && !change.Drop {
			result.Now = state.Now
		} else {
			s.queueChange(batch, &change, &result)
		}
		batch.Queue("commit")
		return pg.CommitError(conn.SendBatch(ctx, batch).Close())
	})
	if err != nil {
		return window.Change{}, WorkResult{}, fmt.Errorf("work under lock of group-shard %d: %w", gs, err)
	}
	return change, result, nil
}
