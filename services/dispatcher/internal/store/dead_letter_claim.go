package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
)

// lockedLetter is a dead letter whose row this transaction holds.
type lockedLetter struct {
	ID             DeadLetterID
	Bytes          int
	Trimmed, Again bool
}

// lockLetters locks those of the ids, which are in order, that are dead letters of these queues.
func (c *Control) lockLetters(ctx context.Context, tx pg.Tx, ids []DeadLetterID, of []int64) ([]lockedLetter, error) {
	rows, err := tx.Query(ctx, c.s.sql.text("dead_letters_lock"), ids, of)
	if err != nil {
		return nil, fmt.Errorf("claim dead letters: %w", err)
	}
	locked, err := pgx.CollectRows(rows, pgx.RowToStructByPos[lockedLetter])
	if err != nil {
		return nil, fmt.Errorf("claim dead letters: %w", err)
	}
	return locked, nil
}

// letterBound is what one transaction claims at most. A dead letter larger than bytes is claimed alone.
type letterBound struct{ messages, bytes int }

// claimed is what one transaction holds of the dead letters it was asked for.
type claimed struct {
	chosen   []DeadLetterID
	notFound []DeadLetterID // none of these queues
	passed   int            // there, and not wanted
}

// claimLetters locks the first of the ids, which are in order, and chooses those that are wanted, as many as the bound allows. It returns the ids that it
// did not come to. The row locks decide between racers: what is chosen is nobody else's until the transaction ends.
func (c *Control) claimLetters(
	ctx context.Context, tx pg.Tx, from []int64, ids []DeadLetterID, bound letterBound, wanted func(lockedLetter) (bool, error),
) (out claimed, rest []DeadLetterID, err error) {
	ids, rest = ids[:min(len(ids), bound.messages)], ids[min(len(ids), bound.messages):]
	locked, err := c.lockLetters(ctx, tx, ids, from)
	if err != nil {
		return claimed{}, nil, err
	}
	bytes, next := 0, 0
	for i, id := range ids {
		if next == len(locked) || locked[next].ID != id {
			out.notFound = append(out.notFound, id)
			continue
		}
		d := locked[next]
		next++
		switch want, err := wanted(d); {
		case err != nil:
			return claimed{}, nil, err
		case !want:
			out.passed++
		case len(out.chosen) > 0 && bytes+d.Bytes > bound.bytes:
			return out, append(slices.Clone(ids[i:]), rest...), nil
		default:
			out.chosen = append(out.chosen, id)
			bytes += d.Bytes
		}
	}
	return out, rest, nil
}
