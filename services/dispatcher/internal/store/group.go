package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/queue"
)

// FindGroup returns the group of q with that name, or an error matching ErrGroupNotFound.
func (c *Control) FindGroup(ctx context.Context, q Queue, name string) (Group, error) {
	return c.oneGroup(ctx, c.on(), "group_find", q.ID, name)
}

// EnsureGroup returns the group of q with that name, made with the options if there was none. When it returns a new group that begins at latest, every
// message that commits from now on is for it. Racing callers get the same group, made with the options of one of them: the caller MUST look whether
// they agree (GroupOptions.Agrees). It is not a control action and not audited: any pop may do it. The error matches ErrQueueNotFound if q is
// deleted and ErrTooManyGroups if q has no room for another.
func (c *Control) EnsureGroup(ctx context.Context, q Queue, name string, options GroupOptions) (g Group, created bool, err error) {
	g, err = c.FindGroup(ctx, q, name)
	if !errors.Is(err, ErrGroupNotFound) {
		return g, false, err
	}
	err = c.inTx(ctx, func(tx pg.Tx) error {
		locked, err := c.oneQueue(ctx, tx, "queue_lock_id", q.ID)
		if err != nil {
			return err
		}
		g, created, err = c.ensureGroup(ctx, tx, locked, name, options)
		return err
	})
	return g, created, err
}

// CreateGroup is EnsureGroup as a control action: audited, and an existing group with other options is an *invalid.Error with code GROUP_MISMATCH.
func (c *Control) CreateGroup(ctx context.Context, by tenant.Caller, queueName, name string, options GroupOptions) (g Group, created bool, err error) {
	err = c.inTx(ctx, func(tx pg.Tx) error {
		q, err := c.oneQueue(ctx, tx, "queue_lock", string(by.Tenant), queueName)
		if err != nil {
			return err
		}
		if g, created, err = c.ensureGroup(ctx, tx, q, name, options); err != nil {
			return err
		}
		if err := options.Agrees(g.Group); err != nil {
			return err
		}
		return c.audit(ctx, tx, by, "group.create", groupResource(queueName, name), map[string]any{
			"queue_id": idText(q.ID), "group_id": idText(g.ID), "created": created,
			"mode": g.Mode, "on_failure": g.OnFailure, "start": g.Start.String(),
		})
	})
	return g, created, err
}

// ensureGroup needs the lock of q's row: it makes max_groups exact and lets no group be made in a queue that goes.
func (c *Control) ensureGroup(ctx context.Context, tx pg.Tx, q Queue, name string, options GroupOptions) (Group, bool, error) {
	g, err := c.oneGroup(ctx, tx, "group_find", q.ID, name)
	if !errors.Is(err, ErrGroupNotFound) {
		return g, false, err
	}
	var count int
	if err := tx.QueryRow(ctx, c.s.sql.text("group_count"), q.ID).Scan(&count); err != nil {
		return Group{}, false, fmt.Errorf("count groups: %w", err)
	}
	if count >= q.Config.MaxGroups {
		return Group{}, false, fmt.Errorf("queue %q has %d groups: %w", q.Name, count, ErrTooManyGroups)
	}
	want := options.Resolve(name)
	var starts []int64
	if want.Start.Kind == queue.AtTime {
		if starts, err = c.startsAt(ctx, tx, "start", q.Shards, want.Start.Time); err != nil {
			return Group{}, false, err
		}
	}
	g, err = c.oneGroup(ctx, tx, "group_create", want.Start.String(), starts, q.Shards, q.ID, name, string(want.Mode), string(want.OnFailure))
	if err == nil {
		err = c.hideDeleted(ctx, tx, q, g)
	}
	return g, err == nil, err
}

// DeleteGroup frees the group's name and fences its leases in one short transaction; what it held is freed behind (Purge). Its dead letters stay.
func (c *Control) DeleteGroup(ctx context.Context, by tenant.Caller, queueName, name string) (Group, error) {
	var g Group
	err := c.inTx(ctx, func(tx pg.Tx) error {
		q, err := c.oneQueue(ctx, tx, "queue_lock", string(by.Tenant), queueName)
		if err != nil {
			return err
		}
		if g, err = c.oneGroup(ctx, tx, "group_find", q.ID, name); err != nil {
			return err
		}
		for _, step := range []string{"group_shards_lock", "group_shards_delete"} {
			if err := c.exec(ctx, tx, step, g.Shards); err != nil {
				return err
			}
		}
		if err := c.exec(ctx, tx, "group_delete", g.ID); err != nil {
			return err
		}
		return c.audit(ctx, tx, by, "group.delete", groupResource(queueName, name), map[string]any{
			"queue_id": idText(q.ID), "group_id": idText(g.ID),
		})
	})
	return g, err
}

func groupResource(queueName, group string) string { return "queue/" + queueName + "/group/" + group }

func (c *Control) oneGroup(ctx context.Context, on querier, statement string, args ...any) (Group, error) {
	rows, err := on.Query(ctx, c.s.sql.text(statement), args...)
	if err != nil {
		return Group{}, fmt.Errorf("%s: %w", readable(statement), err)
	}
	g, err := pgx.CollectExactlyOneRow(rows, scanGroup)
	if pg.IsNoRows(err) {
		return Group{}, ErrGroupNotFound
	}
	if err != nil {
		return Group{}, fmt.Errorf("%s: %w", readable(statement), err)
	}
	return g, nil
}

func scanGroup(row pgx.CollectableRow) (Group, error) {
	var g Group
	var start string
	var shards []int64
	if err := row.Scan(&g.ID, &g.QueueID, &g.Name, &g.Mode, &g.OnFailure, &start, &shards, &g.CreatedAt); err != nil {
		return Group{}, err
	}
	var err error
	if g.Start, err = queue.ParseStart(start); err != nil {
		return Group{}, fmt.Errorf("start of group %d: %w", g.ID, err)
	}
	g.CreatedAt = g.CreatedAt.UTC()
	g.Shards = make([]lease.GroupShardID, len(shards))
	for i, id := range shards {
		g.Shards[i] = lease.GroupShardID(id)
	}
	return g, nil
}
