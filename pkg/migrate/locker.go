package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"postrider.dev/pkg/clock"
)

// unlockTimeout bounds the release of the lock, on its own time: the caller's context may have ended.
const unlockTimeout = 5 * time.Second

// locker takes the schema's lock on the connection it is given. It satisfies goose's lock.SessionLocker.
//
// It polls instead of waiting inside the server: a waiting session holds a snapshot, which would block CREATE INDEX CONCURRENTLY for ever.
type locker struct {
	set Set
	clk clock.Clock
}

func (l *locker) key() int64 {
	h := fnv.New64a()
	h.Write([]byte("migrate:" + l.set.Schema)) // a hash never fails
	return int64(h.Sum64())                    // any 64 bits are a key
}

// SessionLock returns nil when this connection holds the lock.
func (l *locker) SessionLock(ctx context.Context, conn *sql.Conn) error {
	for {
		var held bool
		if err := conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1)", l.key()).Scan(&held); err != nil {
			return fmt.Errorf("lock schema %s: %w", l.set.Schema, err)
		}
		if held {
			return nil
		}
		if err := l.clk.Sleep(ctx, 50*time.Millisecond+rand.N(50*time.Millisecond)); err != nil { //nolint:gosec // jitter needs no secret
			return fmt.Errorf("lock schema %s: %w", l.set.Schema, err)
		}
	}
}

// prepare makes sure, under the lock, that the schema exists and its version can be read. goose would not: it looks before it locks, and
// takes what it cannot see for fresh.
func (l *locker) prepare(ctx context.Context, db *sql.DB) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close() //nolint:errcheck // back to the pool
	if err := l.SessionLock(ctx, conn); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.SessionUnlock(ctx, conn)) }()
	return l.ensureSchema(ctx, conn)
}

// ensureSchema makes the schema unless it exists: CREATE SCHEMA IF NOT EXISTS asks for a right on the database even then, which an owner of just
// this schema does not have.
func (l *locker) ensureSchema(ctx context.Context, conn *sql.Conn) error {
	var exists bool
	if err := conn.QueryRowContext(ctx, "SELECT to_regnamespace($1) IS NOT NULL", l.set.Schema).Scan(&exists); err != nil {
		return fmt.Errorf("look for schema %s: %w", l.set.Schema, err)
	}
	if !exists {
		if _, err := conn.ExecContext(ctx, "CREATE SCHEMA "+l.set.Schema); err != nil {
			return fmt.Errorf("create schema %s: %w", l.set.Schema, err)
		}
	}
	_, err := l.set.version(ctx, conn)
	return err
}

// SessionUnlock releases the lock.
func (l *locker) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
	defer cancel()
	if _, err := conn.ExecContext(ctx, "SELECT pg_advisory_unlock($1)", l.key()); err != nil {
		return fmt.Errorf("unlock schema %s: %w", l.set.Schema, err)
	}
	return nil
}
