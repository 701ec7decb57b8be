package store

import (
	"context"
	"fmt"
	"slices"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// MessageName is one of the names that a message has: by the first of them that is set.
type MessageName struct {
	ID      *message.ID
	Pending *message.PendingID
	Client  ClientName // the newest message under it
}

// Deleted is what was deleted, and the same if it was deleted before.
type Deleted struct {
	ID        message.ID        // of what was in the log
	Pending   message.PendingID // of what was not
	Cancelled bool              // it waited for its time: it never comes
}

// DeleteMessage takes one message away for everybody: every group of its queue has settled it, whatever holds it, one that is made or moved later does so at once,
// and nobody is shown it. A message that waits for its time is cancelled: it will never be in the log, and its idempotency key stays used. Its bytes, and its dead
// letters, stay as long as they would have. When it returns nil, no lease that is granted later holds the message, even after a crash.
//
// The error matches ErrMessageNotFound if the queue never had it, or retention took it.
func (c *Control) DeleteMessage(ctx context.Context, by tenant.Caller, queueName string, name MessageName) (Deleted, error) {
	if name.ID == nil && name.Pending == nil {
		id, err := c.named(ctx, by.Tenant, queueName, name.Client) // before anything is locked: there is no index
		if err != nil {
			return Deleted{}, err
		}
		name.ID = &id
	}
	var out Deleted
	err := c.inTx(ctx, func(tx pg.Tx) error {
		out = Deleted{}
		q, err := c.oneQueue(ctx, tx, "queue_lock", string(by.Tenant), queueName)
		if err != nil {
			return err
		}
		if name.ID != nil {
			out.ID = *name.ID
			return c.deleteAt(ctx, tx, by, q, out.ID)
		}
		out.Pending, out.Cancelled = *name.Pending, true
		place, cancelled, err := c.cancel(ctx, tx, by, q, *name.Pending)
		if err != nil || cancelled {
			return err
		}
		out = Deleted{ID: place}
		return c.deleteAt(ctx, tx, by, q, place)
	})
	return out, err
}

// named finds the newest message that has a name.
func (c *Control) named(ctx context.Context, t tenant.ID, queueName string, name ClientName) (message.ID, error) {
	q, err := c.FindQueue(ctx, t, queueName)
	if err != nil {
		return message.ID{}, err
	}
	f, ok, err := c.FindByClientID(ctx, q, name.Partition, name.ClientID)
	if err == nil && !ok {
		err = fmt.Errorf("client id %q: %w", name.ClientID, ErrMessageNotFound)
	}
	return message.ID{Shard: f.Shard, Offset: f.Offset}, err
}

// cancel deletes what waits under a pending id. What came meanwhile is at place; what was cancelled before is cancelled. Whoever moves the message to the log is
// waited for: it is never in neither.
func (c *Control) cancel(
	ctx context.Context, tx pg.Tx, by tenant.Caller, q Queue, id message.PendingID,
) (place message.ID, cancelled bool, err error) {
	var shard message.ShardID
	err = tx.QueryRow(ctx, c.s.sql.text("delayed_cancel"), id, q.Shards).Scan(&shard)
	if err == nil {
		detail := map[string]any{"queue_id": idText(q.ID), "message_id": id.String()}
		return place, true, c.audit(ctx, tx, by, "message.cancel", "queue/"+q.Name, detail)
	}
	if !pg.IsNoRows(err) {
		return place, false, fmt.Errorf("cancel pending message: %w", err)
	}
	err = tx.QueryRow(ctx, c.s.sql.text("pending_place"), id).Scan(&place.Shard, &place.Offset)
	if pg.IsNoRows(err) || err == nil && !slices.Contains(q.Shards, place.Shard) {
		return place, false, fmt.Errorf("pending id %s: %w", id, ErrMessageNotFound)
	}
	if err != nil {
		return place, false, fmt.Errorf("find pending message: %w", err)
	}
	return place, place.Offset < 0, nil
}

// deleteAt deletes a message of the log. The lock of q's row is held: no group is made or moved meanwhile.
func (c *Control) deleteAt(ctx context.Context, tx pg.Tx, by tenant.Caller, q Queue, id message.ID) error {
	at := slices.Index(q.Shards, id.Shard)
	if at < 0 {
		return fmt.Errorf("message id %s: %w", id, ErrMessageNotFound)
	}
	hash, err := c.hashAt(ctx, tx, id)
	if err != nil {
		return err
	}
	if dead, err := c.s.tombstones(ctx, tx, id.Shard, id.Offset, id.Offset+1); err != nil || dead.Has(id.Offset) {
		return err
	}
	groups, err := c.tracedGroups(ctx, tx, q, "")
	if err != nil {
		return err
	}
	ids := make([]lease.GroupShardID, len(groups))
	for i := range groups {
		ids[i] = groups[i].Shards[at]
	}
	if err := c.exec(ctx, tx, "group_shards_lock", ids); err != nil {
		return err
	}
	for _, g := range groups {
		want := &window.Delete{Offset: id.Offset, Hash: hash}
		if _, err := c.changeLocked(ctx, tx, g.Shards[at], policyOf(q, g), want); err != nil {
			return err
		}
	}
	if err := c.exec(ctx, tx, "tombstone_put", id.Shard, id.Offset); err != nil {
		return err
	}
	return c.audit(ctx, tx, by, "message.delete", "queue/"+q.Name, map[string]any{
		"queue_id": idText(q.ID), "message_id": id.String(), "shard_id": idText(int64(id.Shard)), "offset": idText(int64(id.Offset)),
	})
}

// hashAt is the hash of the partition of a message in the log. It needs no key of an encrypted queue.
func (c *Control) hashAt(ctx context.Context, tx pg.Tx, id message.ID) (uint64, error) {
	var shard message.ShardID
	var tail, head message.Offset
	err := tx.QueryRow(ctx, c.s.sql.text("shard_bounds"), []message.ShardID{id.Shard}).Scan(&shard, &tail, &head)
	if err != nil && !pg.IsNoRows(err) {
		return 0, fmt.Errorf("read shard: %w", err)
	}
	if err != nil || id.Offset < tail || id.Offset >= head {
		return 0, fmt.Errorf("message id %s: %w", id, ErrMessageNotFound)
	}
	rows, err := tx.Query(ctx, c.s.sql.text("directories"), id.Shard, id.Offset, id.Offset+1, 1)
	if err != nil {
		return 0, fmt.Errorf("read directory: %w", err)
	}
	found, err := scanDirectories(rows)
	if err != nil {
		return 0, fmt.Errorf("read directory: %w", err)
	}
	for _, d := range found {
		if d.Base <= id.Offset && id.Offset < d.End() {
			return d.Hashes[id.Offset-d.Base], nil
		}
	}
	return 0, fmt.Errorf("message id %s was trimmed: %w", id, ErrMessageNotFound)
}

// policyOf is what a plan of a control action decides by.
func policyOf(q Queue, g Group) window.Policy {
	return window.Policy{Mode: g.Mode, OnFailure: g.OnFailure, MaxAttempts: q.Config.MaxAttempts, Backoff: q.Config.Backoff, Trace: q.Config.Trace}
}
