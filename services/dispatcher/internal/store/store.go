package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/seal"
	"postrider.dev/services/dispatcher/internal/domain/window"
)

// ErrGone says that a group-shard has no row: its group or queue was deleted.
var ErrGone = errors.New("group-shard is gone")

// appPrefix begins the application name of every dispatcher's session. Only sessions under it are ever ended by another.
const appPrefix = "postrider-dispatcher/"

// detachedTimeout bounds what must be done although the caller's context has ended: rollback, ending lost sessions.
const detachedTimeout = 3 * time.Second

// Settings are the options of the pool a Store works on; the caller adds size, traces and the like. Each process gets a name of its own, so that it ends
// no other's sessions when it looks for its lost ones.
//
// The planner may not choose: plans are made once, without the values, when tables are often empty, and must still be right for a full one.
func Settings() pg.Options {
	return pg.Options{
		AppName: appPrefix + rand.Text()[:12],
		RuntimeParams: map[string]string{
			"plan_cache_mode":                     "force_generic_plan",
			"jit":                                 "off",
			"enable_seqscan":                      "off",
			"enable_indexonlyscan":                "off",
			"enable_hashjoin":                     "off",
			"enable_mergejoin":                    "off",
			"lock_timeout":                        "2s",
			"statement_timeout":                   "30s",
			"idle_in_transaction_session_timeout": "3s",
			"default_transaction_isolation":       "read committed",
		},
	}
}

// Store is the dispatcher's database. It is safe for concurrent use; how many calls run at once is bounded by the pool.
type Store struct {
	db   *pg.DB
	sql  book
	work workBook
	keys keyring

	sweeper sweeper

	ending chan struct{} // full while lost backends are being ended
	mu     sync.Mutex    // guards lost
	lost   []uint32      // backends that may still be carrying out what we lost sight of
}

// Option is something a Store can do without.
type Option func(*Store)

// WithMasters gives the master keys of encrypted queues. Without, there are none.
func WithMasters(m seal.Masters) Option { return func(s *Store) { s.keys.masters = m } }

// New returns a Store on a pool opened with Settings.
func New(db *pg.DB, options ...Option) *Store {
	sql := readBook()
	s := &Store{db: db, sql: sql, work: newWorkBook(sql), ending: make(chan struct{}, 1)}
	for _, option := range options {
		option(s)
	}
	return s
}

// Now reads the database's clock.
func (s *Store) Now(ctx context.Context) (window.DBTime, error) {
	var at time.Time
	if err := s.db.QueryRow(ctx, s.sql.text("now")).Scan(&at); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	return window.DBTimeOf(at), nil
}

// errReadOnly says that what answers takes no writes.
var errReadOnly = errors.New("the database is read-only")

// Writable returns nil if the database answers and takes writes.
func (s *Store) Writable(ctx context.Context) error {
	var writable bool
	if err := s.db.QueryRow(ctx, s.sql.text("writable")).Scan(&writable); err != nil {
		return fmt.Errorf("ask whether the database is there: %w", err)
	}
	if !writable {
		return errReadOnly
	}
	return nil
}

// write runs one transaction that fn sends as batches on one connection; fn passes the error of the last one, the commit, through pg.CommitError.
// A lock that is not given in time has its holder looked at, and if the holder was ended, fn is run once more. fn MUST leave no transaction
// open when it returns nil.
func (s *Store) write(ctx context.Context, fn func(*pgxpool.Conn) error) error {
	err := s.writeOnce(ctx, fn)
	if !pg.IsLockTimeout(err) {
		return err
	}
	if ended, uerr := s.unblock(ctx); uerr != nil || ended == 0 {
		return errors.Join(err, uerr)
	}
	return s.writeOnce(ctx, fn)
}

func (s *Store) writeOnce(ctx context.Context, fn func(*pgxpool.Conn) error) error {
	conn, err := s.db.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("acquire connection: %w", err)
	}
	defer conn.Release()
	pid := conn.Conn().PgConn().PID()
	if err = fn(conn); err == nil {
		return nil
	}
	if pg.IsOutcomeUnknown(err) || conn.Conn().IsClosed() {
		s.lose(pid)
		return err
	}
	if conn.Conn().PgConn().TxStatus() != 'I' {
		rollback(ctx, conn.Conn())
	}
	return err
}

// rollback leaves the connection usable; if that fails, the pool drops it.
func rollback(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), detachedTimeout)
	defer cancel()
	_, _ = conn.Exec(ctx, "rollback")
}
