package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
)

// ErrMessageNotFound says that no message of that id is in the queue, or not any more.
var ErrMessageNotFound = errors.New("message not found")

// FoundPending is the message of a pending id: Found once it is in the log, and else what is waiting.
type FoundPending struct {
	Found

	// AvailableAt is when a message that still waits is due; zero: it is in the log, at Offset.
	AvailableAt time.Time
}

// FindPending returns the message that was accepted under a pending id, where it is now. A message in the log is found as long as idempotency keys are kept.
// Otherwise the error matches ErrMessageNotFound.
func (c *Control) FindPending(ctx context.Context, q Queue, id message.PendingID) (FoundPending, error) {
	var f FoundPending
	var at time.Time
	var frame []byte
	var key int32
	err := c.on().QueryRow(ctx, c.s.sql.text("pending_find"), id).Scan(&f.Shard, &f.Offset, &at, &frame, &key)
	if pg.IsNoRows(err) || err == nil && !slices.Contains(q.Shards, f.Shard) {
		return FoundPending{}, fmt.Errorf("pending id %s: %w", id, ErrMessageNotFound)
	}
	if err != nil {
		return FoundPending{}, fmt.Errorf("find pending message: %w", err)
	}
	if frame == nil {
		f.Found, err = c.FindByID(ctx, q, message.ID{Shard: f.Shard, Offset: f.Offset})
		return f, err
	}
	f.AvailableAt = at.UTC()
	if frame, err = c.openDelayed(ctx, KeyID(id), f.Shard, key, frame); err != nil {
		return FoundPending{}, fmt.Errorf("pending message %s: %w", id, err)
	}
	if f.Message, err = message.ParseFrame(frame); err != nil {
		return FoundPending{}, fmt.Errorf("pending message %s: %w", id, err)
	}
	return f, nil
}

// FindByID returns the message with that id, if it is one of the queue's and in the log; else the error matches ErrMessageNotFound.
func (c *Control) FindByID(ctx context.Context, q Queue, id message.ID) (Found, error) {
	if !slices.Contains(q.Shards, id.Shard) {
		return Found{}, fmt.Errorf("message id %s: %w", id, ErrMessageNotFound)
	}
	read, err := c.readSegments(ctx, id.Shard, "segment_holding", id.Shard, id.Offset)
	if err != nil {
		return Found{}, err
	}
	if len(read) == 0 || id.Offset >= read[0].End() {
		return Found{}, fmt.Errorf("message id %s: %w", id, ErrMessageNotFound)
	}
	m, err := read[0].Body.Message(int(id.Offset - read[0].Base))
	if err != nil {
		return Found{}, fmt.Errorf("message id %s: %w", id, err)
	}
	return Found{Message: m, Shard: id.Shard, Offset: id.Offset, CreatedAt: read[0].CreatedAt}, nil
}
