package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
)

// Bounds of one transaction of a purge; a larger request is several.
const (
	purgedMessages = 500
	purgedBytes    = 64 << 20 // of payloads; one is always taken
)

// PurgeRequest names dead letters, or up to Limit of a group's or of the whole queue's (Group is empty), oldest first.
type PurgeRequest struct {
	IDs      []DeadLetterID
	Group    string
	Limit    int
	Before   *time.Time // only those that failed before; nil: whenever
	Redriven bool       // also those that were redriven
}

// PurgedLetters is what a purge did.
type PurgedLetters struct {
	Purged   int
	Already  int            // asked for by id, redriven before, and kept
	NotFound []DeadLetterID // asked for by id
	More     bool           // of a group or a queue: there may be more than the limit
}

// add adds what another transaction did.
func (p *PurgedLetters) add(step PurgedLetters) {
	p.Purged += step.Purged
	p.Already += step.Already
	p.NotFound = append(p.NotFound, step.NotFound...)
}

// PurgeDeadLetters deletes dead letters for good, in transactions of a bounded size, each with its own audit entry. After an error, what the answer counts
// is done, and asking again goes on. The error matches ErrQueueNotFound as ChooseToPurge's does.
func (c *Control) PurgeDeadLetters(ctx context.Context, by tenant.Caller, queueName string, req PurgeRequest) (PurgedLetters, error) {
	var out PurgedLetters
	ids, more, err := c.ChooseToPurge(ctx, by.Tenant, queueName, req)
	if err != nil {
		return out, err
	}
	out.More = more
	for first := true; first || len(ids) > 0; first = false {
		step, rest, err := c.PurgeSome(ctx, by, queueName, req, ids)
		if err != nil {
			return out, err
		}
		out.add(step)
		ids = rest
	}
	return out, nil
}

// ChooseToPurge returns which dead letters the request is about, in the order of PurgeSome, and whether more would have been than its limit. The error
// matches ErrQueueNotFound if no queue has the name and none of which dead letters are left had it.
func (c *Control) ChooseToPurge(ctx context.Context, t tenant.ID, queueName string, req PurgeRequest) (ids []DeadLetterID, more bool, err error) {
	from, err := c.queueIDs(ctx, c.on(), t, queueName)
	if err != nil {
		return nil, false, err
	}
	if len(req.IDs) > 0 {
		ids = slices.Clone(req.IDs)
		slices.SortFunc(ids, compareIDs)
		return slices.Compact(ids), false, nil
	}
	statement, args := "dead_letters_to_purge", []any{from, req.Before, req.Limit + 1, req.Redriven}
	if req.Group != "" {
		statement, args = "dead_letters_to_purge_of_group", []any{from, req.Group, req.Before, req.Limit + 1, req.Redriven}
	}
	rows, err := c.on().Query(ctx, c.s.sql.text(statement), args...)
	if err != nil {
		return nil, false, fmt.Errorf("find dead letters to purge: %w", err)
	}
	if ids, err = pgx.CollectRows(rows, pgx.RowTo[DeadLetterID]); err != nil {
		return nil, false, fmt.Errorf("find dead letters to purge: %w", err)
	}
	more = len(ids) > req.Limit
	return ids[:min(len(ids), req.Limit)], more, nil
}

// PurgeSome is one transaction of a purge: it deletes as many of the ids, which are in order, as it may, with its audit entry, and returns the rest. The
// lock of a dead letter's row decides between racers: each is redriven, or purged, or counted as not found.
func (c *Control) PurgeSome(
	ctx context.Context, by tenant.Caller, queueName string, req PurgeRequest, ids []DeadLetterID,
) (step PurgedLetters, rest []DeadLetterID, err error) {
	from, err := c.queueIDs(ctx, c.on(), by.Tenant, queueName)
	if err != nil {
		return PurgedLetters{}, nil, err
	}
	err = c.inTx(ctx, func(tx pg.Tx) error {
		wanted := func(d lockedLetter) (bool, error) { return !d.Again || req.Redriven, nil }
		var mine claimed
		if mine, rest, err = c.claimLetters(ctx, tx, from, ids, letterBound{messages: purgedMessages, bytes: purgedBytes}, wanted); err != nil {
			return err
		}
		chosen := mine.chosen
		step = PurgedLetters{Purged: len(chosen), Already: mine.passed, NotFound: mine.notFound}
		if len(chosen) > 0 {
			if err := c.exec(ctx, tx, "dead_letters_purge", chosen); err != nil {
				return err
			}
			if err := c.exec(ctx, tx, "dead_letters_of_deleted", from); err != nil {
				return err
			}
		}
		texts := make([]string, len(chosen))
		for i, id := range chosen {
			texts[i] = uuid.UUID(id).String()
		}
		return c.audit(ctx, tx, by, "dead_letter.purge", "queue/"+queueName, map[string]any{
			"queue_ids": idTexts(from), "purged": texts, "already_redriven": step.Already,
		})
	})
	if err != nil {
		return PurgedLetters{}, nil, err
	}
	if len(req.IDs) == 0 {
		step.Already, step.NotFound = 0, nil // a racer's, after they were chosen: nobody asked for those
	}
	return step, rest, nil
}

func idTexts(ids []int64) []string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = idText(id)
	}
	return texts
}
