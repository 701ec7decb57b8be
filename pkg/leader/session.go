package leader

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"postrider.dev/pkg/fence"
	"postrider.dev/pkg/pg"
)

// cleanupTimeout bounds the release of lock and connection, on its own time: the caller's context may have ended.
const cleanupTimeout = 2 * time.Second

// PoolerError says that the connection does not lead to one server session, so a session lock cannot be held on it.
type PoolerError struct {
	Announced uint32 // the server process the connection was told it has
	Actual    uint32 // the one that answered
}

func (e *PoolerError) Error() string {
	return fmt.Sprintf("the database connection is not direct: it was announced server process %d and process %d answered; "+
		"a connection pooler stands in between, and a leader's lock needs a direct connection: set the direct database url", e.Announced, e.Actual)
}

// session is one direct connection. It is used by one goroutine at a time.
type session struct {
	conn  *pgx.Conn
	key   LockKey
	table string
	who   string
}

// openSession connects. The server is told to notice soon when we vanish without a word, because until then it keeps our lock.
func openSession(ctx context.Context, e *Elector) (*session, error) {
	conn, err := pg.Connect(ctx, e.dsn, pg.Options{
		AppName: e.cfg.AppName, ConnectTimeout: e.cfg.ConnectTimeout, StartPatience: -1, Clock: e.clk,
		RuntimeParams: map[string]string{
			"idle_session_timeout": "0", "statement_timeout": "10s",
			"tcp_keepalives_idle": "3", "tcp_keepalives_interval": "1", "tcp_keepalives_count": "3", "tcp_user_timeout": "6000",
		},
	})
	if err != nil {
		return nil, err
	}
	s := &session{conn: conn, key: e.key, table: e.table, who: e.holder}
	var pid uint32
	if err := s.row(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		s.close(ctx)
		return nil, fmt.Errorf("look at the session: %w", err)
	}
	if err := s.sameProcess(pid); err != nil {
		s.close(ctx)
		return nil, err
	}
	return s, nil
}

// row runs a statement without preparing it: behind a pooler a prepared one may be missing, and then the refusal would read like something else.
func (s *session) row(ctx context.Context, sql string, args ...any) pgx.Row {
	return s.conn.QueryRow(ctx, sql, append([]any{pgx.QueryExecModeExec}, args...)...)
}

// sameProcess refuses an answer of another server process than the one the connection was announced. A pooler announces a number of its own.
func (s *session) sameProcess(pid uint32) error {
	if announced := s.conn.PgConn().PID(); announced != pid {
		return &fatalError{&PoolerError{Announced: announced, Actual: pid}}
	}
	return nil
}

// tryLock asks for the lock once. It MUST NOT be called while it is held.
func (s *session) tryLock(ctx context.Context) (bool, error) {
	var held bool
	var pid uint32
	if err := s.row(ctx, "SELECT pg_try_advisory_lock($1::bigint), pg_backend_pid()", s.key.ID()).Scan(&held, &pid); err != nil {
		return false, fmt.Errorf("try lock: %w", err)
	}
	if err := s.sameProcess(pid); err != nil {
		return false, err
	}
	return held, nil
}

// takeOver gives this session's holder the next epoch of the role.
func (s *session) takeOver(ctx context.Context) (fence.Epoch, error) {
	sql := fmt.Sprintf(`
		INSERT INTO %[1]s AS l (role, epoch, holder, elected_at) VALUES ($1::text, 1, $2::text, clock_timestamp())
		ON CONFLICT (role) DO UPDATE SET epoch = l.epoch + 1, holder = excluded.holder, elected_at = excluded.elected_at
		RETURNING epoch`, s.table)
	var epoch fence.Epoch
	if err := s.row(ctx, sql, string(s.key), s.who).Scan(&epoch); err != nil {
		return 0, fmt.Errorf("take over: %w", err)
	}
	return epoch, nil
}

// prove looks from this session whether it holds the lock and whether its epoch is the newest. nil is a proof.
func (s *session) prove(ctx context.Context, epoch fence.Epoch) error {
	sql := fmt.Sprintf(`
		SELECT pg_backend_pid(),
		       (SELECT count(*) FROM pg_locks
		         WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid() AND objsubid = 1
		           AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
		           AND classid = $1::bigint::oid AND objid = $2::bigint::oid),
		       coalesce((SELECT epoch FROM %s WHERE role = $3::text), 0)`, s.table)
	id := uint64(s.key.ID()) // the bits are what counts
	var pid uint32
	var held int
	var newest fence.Epoch
	if err := s.row(ctx, sql, int64(id>>32), int64(id&0xffffffff), string(s.key)).Scan(&pid, &held, &newest); err != nil { // 32 bits fit
		return fmt.Errorf("prove: %w", err)
	}
	if err := s.sameProcess(pid); err != nil {
		return err
	}
	if held != 1 {
		return errNotHeld
	}
	if newest != epoch {
		return fmt.Errorf("%w: %d after %d", errStale, newest, epoch)
	}
	return nil
}

// awaitLoss returns an error as soon as the server or the network ends the connection, and nil when ctx ends first. The session is usable after nil.
func (s *session) awaitLoss(ctx context.Context) error {
	for {
		_, err := s.conn.WaitForNotification(ctx) // nobody notifies us: this reads until something is wrong
		if err == nil {
			continue
		}
		if ctx.Err() != nil && !s.conn.IsClosed() {
			return nil
		}
		return fmt.Errorf("connection lost: %w", err)
	}
}

// unlock gives the lock back.
func (s *session) unlock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	var was bool
	if err := s.row(ctx, "SELECT pg_advisory_unlock($1::bigint)", s.key.ID()).Scan(&was); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	if !was {
		return errNotHeld
	}
	return nil
}

func (s *session) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	_ = s.conn.Close(ctx) // the server frees the lock when the connection ends, however it ends
}
