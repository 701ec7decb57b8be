package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/message"
)

// DeadLetterID is the primary key of a dead letter. Ids grow with the time they were made.
type DeadLetterID [16]byte

// DeadLetter is a snapshot of a message that is out of attempts or was rejected.
type DeadLetter struct {
	message.Message // Payload is nil in lists; Partition is empty too if Trimmed

	ID           DeadLetterID
	QueueID      int64
	Group        string
	Shard        message.ShardID
	Offset       message.Offset
	Priority     int
	PayloadBytes int
	Trimmed      bool // the message was gone when it became a dead letter: there is nothing to redrive
	Failures     int
	Reason       string // 'attempts', 'expired', 'rejected', or 'refused': it was buffered and its queue did not take it
	LastError    string // the last reason a consumer gave
	FailedAt     time.Time
	RedrivenAt   time.Time // zero: never

	key    int32 // 0: in clear
	sealed []byte
}

// DeadLetterFilter chooses what ListDeadLetters returns.
type DeadLetterFilter struct {
	Group    string       // empty: every group
	Redriven bool         // also those that were redriven
	After    DeadLetterID // only greater ones
	Limit    int
}

// ListDeadLetters returns dead letters of the tenant's queue of that name, oldest first, without payloads: those of the live queue, and those of deleted
// queues that had the name. It returns an error matching ErrQueueNotFound if there is no such queue.
func (c *Control) ListDeadLetters(ctx context.Context, t tenant.ID, queueName string, f DeadLetterFilter) ([]DeadLetter, error) {
	ids, err := c.queueIDs(ctx, c.on(), t, queueName)
	if err != nil {
		return nil, err
	}
	statement, args := "dead_letters_page", []any{ids, f.After, f.Limit}
	if f.Group != "" {
		statement, args = "dead_letters_page_group", []any{ids, f.Group, f.After, f.Limit}
	}
	if !f.Redriven {
		statement += "_open"
	}
	rows, err := c.on().Query(ctx, c.s.sql.text(statement), args...)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	page, err := pgx.CollectRows(rows, scanDeadLetter)
	if err == nil {
		err = c.s.openLetters(ctx, c.on(), page)
	}
	if err == nil {
		err = c.placeLetters(ctx, c.on(), page)
	}
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return page, nil
}

// GetDeadLetter returns one dead letter with its payload, or an error matching ErrDeadLetterNotFound (ErrQueueNotFound).
func (c *Control) GetDeadLetter(ctx context.Context, t tenant.ID, queueName string, id DeadLetterID) (DeadLetter, error) {
	ids, err := c.queueIDs(ctx, c.on(), t, queueName)
	if err != nil {
		return DeadLetter{}, err
	}
	rows, err := c.on().Query(ctx, c.s.sql.text("dead_letter_get"), id, ids)
	if err != nil {
		return DeadLetter{}, fmt.Errorf("get dead letter: %w", err)
	}
	d, err := pgx.CollectExactlyOneRow(rows, scanDeadLetter)
	if pg.IsNoRows(err) {
		return DeadLetter{}, ErrDeadLetterNotFound
	}
	one := []DeadLetter{d}
	if err == nil {
		err = c.s.openLetters(ctx, c.on(), one)
	}
	if err == nil {
		err = c.placeLetters(ctx, c.on(), one)
	}
	if err != nil {
		return DeadLetter{}, fmt.Errorf("get dead letter: %w", err)
	}
	return one[0], nil
}

// queueIDs returns the ids of all queues of that name, the live one first; ErrQueueNotFound if there never was one or nothing of it is left.
func (c *Control) queueIDs(ctx context.Context, on querier, t tenant.ID, name string) ([]int64, error) {
	rows, err := on.Query(ctx, c.s.sql.text("queue_ids_of_name"), string(t), name)
	if err != nil {
		return nil, fmt.Errorf("find queues: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("find queues: %w", err)
	}
	if len(ids) == 0 {
		return nil, ErrQueueNotFound
	}
	return ids, nil
}

func scanDeadLetter(row pgx.CollectableRow) (DeadLetter, error) {
	var d DeadLetter
	var partition *string
	var headers []byte
	var redriven *time.Time
	err := row.Scan(&d.ID, &d.QueueID, &d.Group, &d.Shard, &d.Offset, &partition, &d.ClientID, &d.ContentType, &headers, &d.Payload,
		&d.PayloadBytes, &d.Trimmed, &d.Failures, &d.Reason, &d.LastError, &d.FailedAt, &redriven, &d.key)
	if err != nil {
		return d, err
	}
	if partition != nil {
		d.Partition = *partition
	}
	if redriven != nil {
		d.RedrivenAt = redriven.UTC()
	}
	d.FailedAt = d.FailedAt.UTC()
	if d.key != 0 {
		d.sealed = headers
		return d, nil
	}
	d.Headers, err = DecodeHeaders(headers)
	return d, err
}
