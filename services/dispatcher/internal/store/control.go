package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/segment"
)

// Control is the store's cold side: queues, groups, dead letters and the catalogue of partitions. Nothing here is on the path of a message, so it runs
// plain transactions and counts no round trips; but it takes the same locks in the same order.
//
// Each control action writes its audit entry in its own transaction: there is no effect without an entry and no entry without an effect.
type Control struct {
	s   *Store
	enc *segment.Encoder
	dec *segment.Decoder
	tx  pg.Tx // nil but within a transaction of the caller's

	defaults queue.Defaults
}

// NewControl returns the cold side of s. The codecs are those the engine uses.
func NewControl(s *Store, enc *segment.Encoder, dec *segment.Decoder) *Control {
	return &Control{s: s, enc: enc, dec: dec}
}

// WithDefaults returns c as it sees queues under a node's own defaults.
func (c *Control) WithDefaults(d queue.Defaults) *Control {
	other := *c
	other.defaults = d
	return &other
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// within returns c as it works inside a transaction that is not its own: nothing of what it does is committed before that is.
func (c *Control) within(tx pg.Tx) *Control {
	in := *c
	in.tx = tx
	return &in
}

// on is where c reads.
func (c *Control) on() querier {
	if c.tx != nil {
		return c.tx
	}
	return c.s.db
}

// inSnapshot runs fn, which only reads, on one state of the database; within a transaction of the caller's on the states it sees.
func (c *Control) inSnapshot(ctx context.Context, fn func(pg.Tx) error) error {
	if c.tx != nil {
		return fn(c.tx)
	}
	return c.s.db.InTx(ctx, pg.RepeatableRead, fn)
}

// inTx runs fn in a transaction; see pg.DB.InTx. A lock that is not given in time has its holder looked at like on the hot side, and if a holder was
// ended, the transaction is run once more.
func (c *Control) inTx(ctx context.Context, fn func(pg.Tx) error) error {
	if c.tx != nil {
		return fn(c.tx)
	}
	err := c.s.db.InTx(ctx, pg.ReadCommitted, fn)
	if !pg.IsLockTimeout(err) {
		return err
	}
	if ended, uerr := c.s.unblock(ctx); uerr != nil || ended == 0 {
		return errors.Join(err, uerr)
	}
	return c.s.db.InTx(ctx, pg.ReadCommitted, fn)
}

func (c *Control) exec(ctx context.Context, on querier, statement string, args ...any) error {
	if _, err := on.Exec(ctx, c.s.sql.text(statement), args...); err != nil {
		return fmt.Errorf("%s: %w", readable(statement), err)
	}
	return nil
}

// idText keeps ids from being rounded by readers of JSON.
func idText(id int64) string { return strconv.FormatInt(id, 10) }

// audit writes the entry of a control action into its transaction.
func (c *Control) audit(ctx context.Context, tx pg.Tx, by tenant.Caller, action, resource string, detail map[string]any) error {
	text, err := json.Marshal(detail)
	if err != nil {
		return fmt.Errorf("encode audit detail: %w", err)
	}
	return c.exec(ctx, tx, "audit", string(by.Tenant), by.Actor, action, resource, text)
}
