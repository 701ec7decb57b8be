package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/placement"
	"postrider.dev/services/dispatcher/internal/domain/queue"
)

// createAttempts bounds how often a name may be taken and freed again by others while we want to have it.
const createAttempts = 10

// FindQueue returns the live queue of that name, or an error matching ErrQueueNotFound.
func (c *Control) FindQueue(ctx context.Context, t tenant.ID, name string) (Queue, error) {
	return c.oneQueue(ctx, c.on(), "queue_find", string(t), name)
}

// EnsureQueue returns the live queue of that name, made with default options if there was none. However many callers race, on however many dispatchers,
// all get the same queue. It is not a control action and not audited: any push may do it.
func (c *Control) EnsureQueue(ctx context.Context, t tenant.ID, name string) (q Queue, created bool, err error) {
	for range createAttempts {
		q, err = c.FindQueue(ctx, t, name)
		if !errors.Is(err, ErrQueueNotFound) {
			return q, false, err
		}
		q, err = c.createQueue(ctx, c.on(), t, name, queue.Options{})
		if !errors.Is(err, ErrQueueNotFound) {
			return q, err == nil, err
		}
	}
	return Queue{}, false, err
}

// createQueue makes the queue; the error matches ErrQueueNotFound if the name is taken by now.
func (c *Control) createQueue(ctx context.Context, on querier, t tenant.ID, name string, options queue.Options) (Queue, error) {
	config, err := json.Marshal(options)
	if err != nil {
		return Queue{}, fmt.Errorf("encode options: %w", err)
	}
	resolved, version := options.Resolve(c.defaults), placement.V1
	if resolved.Encryption {
		version = placement.V2
	}
	return c.oneQueue(ctx, on, "queue_create", string(t), name, config, version, resolved.Lanes*resolved.Shards, resolved.Shards)
}

// Configured is what Configure did.
type Configured struct {
	Queue   Queue
	Created bool
	Changed bool // false: the options were so already, and the version stays
}

// Configure creates the queue or merges the patch into its options. A change makes a new version, written into the queue's shards in the same
// transaction. What is wrong with the patch is an *invalid.Error.
func (c *Control) Configure(ctx context.Context, by tenant.Caller, name string, p queue.Patch) (Configured, error) {
	var out Configured
	err := c.inTx(ctx, func(tx pg.Tx) error {
		var err error
		if out, err = c.configure(ctx, tx, by.Tenant, name, p); err != nil {
			return err
		}
		err = c.audit(ctx, tx, by, "queue.configure", "queue/"+name, map[string]any{
			"queue_id": idText(out.Queue.ID), "set": p.Set, "reset": p.Reset,
			"created": out.Created, "changed": out.Changed, "config_version": out.Queue.ConfigVersion,
		})
		if err != nil || !out.Changed || out.Created {
			return err
		}
		if err := c.exec(ctx, tx, "shards_lock", out.Queue.Shards); err != nil {
			return err
		}
		return c.exec(ctx, tx, "shards_configure", out.Queue.ConfigVersion, out.Queue.Shards)
	})
	return out, err
}

func (c *Control) configure(ctx context.Context, tx pg.Tx, t tenant.ID, name string, p queue.Patch) (Configured, error) {
	for range createAttempts {
		q, err := c.oneQueue(ctx, tx, "queue_lock", string(t), name)
		if err == nil {
			return c.reconfigure(ctx, tx, q, p)
		}
		if !errors.Is(err, ErrQueueNotFound) {
			return Configured{}, err
		}
		options, err := queue.Create(p)
		if err != nil {
			return Configured{}, err
		}
		if options.Resolve(c.defaults).Encryption {
			if err := c.checkMasters(); err != nil {
				return Configured{}, err
			}
		}
		q, err = c.createQueue(ctx, tx, t, name, options)
		if err == nil && q.Encrypted() {
			err = c.makeKeys(ctx, tx, &q)
		}
		if !errors.Is(err, ErrQueueNotFound) {
			return Configured{Queue: q, Created: true, Changed: true}, err
		}
	}
	return Configured{}, fmt.Errorf("queue %q is created and deleted all the time: %w", name, ErrQueueNotFound)
}

// reconfigure needs the lock of q's row, and leaves the shards to the caller.
func (c *Control) reconfigure(ctx context.Context, tx pg.Tx, q Queue, p queue.Patch) (Configured, error) {
	next, err := q.Options.Merge(p)
	if err != nil {
		return Configured{}, err
	}
	before, err := json.Marshal(q.Options)
	if err != nil {
		return Configured{}, fmt.Errorf("encode options: %w", err)
	}
	after, err := json.Marshal(next)
	if err != nil {
		return Configured{}, fmt.Errorf("encode options: %w", err)
	}
	if string(before) == string(after) {
		return Configured{Queue: q}, nil
	}
	q.Options, q.Config = next, next.Resolve(c.defaults)
	if err := tx.QueryRow(ctx, c.s.sql.text("queue_configure"), after, q.ID).Scan(&q.ConfigVersion); err != nil {
		return Configured{}, fmt.Errorf("configure queue: %w", err)
	}
	return Configured{Queue: q, Changed: true}, nil
}

// DeleteQueue makes the queue unreachable in one short transaction: its name is free, its shards are sealed, its groups and their leases are gone. What
// they held is freed behind (Purge); dead letters stay. Without force it is refused with ErrQueueLeased while a lease is open that has not run out.
func (c *Control) DeleteQueue(ctx context.Context, by tenant.Caller, name string, force bool) (Queue, error) {
	var q Queue
	err := c.inTx(ctx, func(tx pg.Tx) error {
		var err error
		if q, err = c.oneQueue(ctx, tx, "queue_lock", string(by.Tenant), name); err != nil {
			return err
		}
		if err := c.deleteGroupShards(ctx, tx, q, force); err != nil {
			return err
		}
		err = c.audit(ctx, tx, by, "queue.delete", "queue/"+name, map[string]any{"queue_id": idText(q.ID), "force": force})
		if err != nil {
			return err
		}
		if err := c.exec(ctx, tx, "shards_lock", q.Shards); err != nil {
			return err
		}
		return c.exec(ctx, tx, "queue_delete", q.ID)
	})
	return q, err
}

// deleteGroupShards deletes the state rows of all groups of q, whose row is locked, so that no group can be added.
func (c *Control) deleteGroupShards(ctx context.Context, tx pg.Tx, q Queue, force bool) error {
	rows, err := tx.Query(ctx, c.s.sql.text("queue_group_ids"), q.ID)
	if err != nil {
		return fmt.Errorf("read groups: %w", err)
	}
	sets, err := pgx.CollectRows(rows, pgx.RowTo[[]int64])
	if err != nil {
		return fmt.Errorf("read groups: %w", err)
	}
	ids := slices.Concat(sets...)
	if len(ids) == 0 {
		return nil
	}
	if err := c.exec(ctx, tx, "group_shards_lock", ids); err != nil {
		return err
	}
	if !force {
		var leased bool
		if err := tx.QueryRow(ctx, c.s.sql.text("group_shards_leased"), ids).Scan(&leased); err != nil {
			return fmt.Errorf("look for leases: %w", err)
		}
		if leased {
			return ErrQueueLeased
		}
	}
	return c.exec(ctx, tx, "group_shards_delete", ids)
}

// ListQueues returns up to limit live queues of the tenant by name, after a name, with a prefix.
func (c *Control) ListQueues(ctx context.Context, t tenant.ID, prefix, after string, limit int) ([]Queue, error) {
	rows, err := c.on().Query(ctx, c.s.sql.text("queue_list"), string(t), after, prefix, prefixEnd(prefix), limit)
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	queues, err := pgx.CollectRows(rows, c.scanQueue)
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	return queues, nil
}

// prefixEnd returns the first text behind all that begin with prefix, in the order of bytes; nil if there is none.
func prefixEnd(prefix string) *string {
	for prefix != "" {
		last, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		if last++; last == 0xD800 {
			last = 0xE000 // surrogates are no text
		}
		if last <= utf8.MaxRune {
			end := prefix + string(last)
			return &end
		}
	}
	return nil
}

func (c *Control) oneQueue(ctx context.Context, on querier, statement string, args ...any) (Queue, error) {
	rows, err := on.Query(ctx, c.s.sql.text(statement), args...)
	if err != nil {
		return Queue{}, fmt.Errorf("%s: %w", readable(statement), err)
	}
	q, err := pgx.CollectExactlyOneRow(rows, c.scanQueue)
	if pg.IsNoRows(err) {
		return Queue{}, ErrQueueNotFound
	}
	if err != nil {
		return Queue{}, fmt.Errorf("%s: %w", readable(statement), err)
	}
	return q, c.loadKeys(ctx, on, &q)
}

func (c *Control) scanQueue(row pgx.CollectableRow) (Queue, error) { return c.scanQueueAnd(row) }

// scanQueueAnd reads a queue's columns and those that follow.
func (c *Control) scanQueueAnd(row pgx.CollectableRow, more ...any) (Queue, error) {
	var q Queue
	var config []byte
	var created time.Time
	var shards []int64
	columns := []any{&q.ID, &q.Tenant, &q.Name, &config, &q.ConfigVersion, &q.Placement, &shards, &created}
	if err := row.Scan(append(columns, more...)...); err != nil {
		return Queue{}, err
	}
	if err := json.Unmarshal(config, &q.Options); err != nil {
		return Queue{}, fmt.Errorf("options of queue %d: %w", q.ID, err)
	}
	q.Config, q.CreatedAt = q.Options.Resolve(c.defaults), created.UTC()
	q.Shards = make([]message.ShardID, len(shards))
	for i, id := range shards {
		q.Shards[i] = message.ShardID(id)
	}
	return q, nil
}

// readable turns a statement's name into the words of an error.
func readable(statement string) string { return strings.ReplaceAll(statement, "_", " ") }
