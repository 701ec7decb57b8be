package pg

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Tx is a transaction as the closure of InTx sees it.
type Tx = pgx.Tx

// Isolation of a transaction.
type Isolation = pgx.TxIsoLevel

// The isolation levels in use.
const (
	ReadCommitted  Isolation = pgx.ReadCommitted
	RepeatableRead Isolation = pgx.RepeatableRead
	Serializable   Isolation = pgx.Serializable
)

const (
	maxAttempts     = 6
	firstPause      = 5 * time.Millisecond
	maxPause        = 200 * time.Millisecond
	rollbackTimeout = 2 * time.Second
	commitTimeout   = 10 * time.Second
)

// InTx runs fn in a transaction and commits when it returns nil. When InTx returns nil the transaction is committed; when it returns an error it did
// nothing, unless IsOutcomeUnknown.
//
// fn may run several times: it is repeated when it lost against another transaction (IsSerialization), at most maxAttempts times in all, with a growing
// jittered pause. So fn MUST NOT do anything that outlives a rollback: no RPC, no send on a channel, no log of success, and results
// assigned, not appended. Rollback and COMMIT run on their own bounded time, because a context that ends in the middle would leave the outcome open.
func (db *DB) InTx(ctx context.Context, iso Isolation, fn func(tx Tx) error) error {
	for attempt, pause := 1, firstPause; ; attempt, pause = attempt+1, min(2*pause, maxPause) {
		err := runTx(ctx, db.Pool, iso, fn)
		if err == nil || !IsSerialization(err) || attempt == maxAttempts {
			return err
		}
		if serr := db.opts.Clock.Sleep(ctx, rand.N(pause)+time.Millisecond); serr != nil { //nolint:gosec // jitter needs no secret
			return errors.Join(serr, err)
		}
	}
}

func runTx(ctx context.Context, pool *pgxpool.Pool, iso Isolation, fn func(tx Tx) error) (err error) {
	tx, err := pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: iso})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	committing := false
	defer func() {
		if !committing { // fn failed or panicked
			rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
			defer cancel()
			_ = tx.Rollback(rctx) // a failed rollback closes the connection, which rolls back
		}
	}()
	if err := fn(tx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("commit: %w", context.Cause(ctx))
	}
	if tx.Conn().IsClosed() {
		return fmt.Errorf("commit: %w", pgconn.ErrConnClosed) // nothing was sent
	}
	committing = true
	cctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	if err := tx.Commit(cctx); err != nil {
		return CommitError(fmt.Errorf("commit: %w", err))
	}
	return nil
}
