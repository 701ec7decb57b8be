package store_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

// stopped is a session of a process that went to sleep while it held locks. The server's own limit for idle transactions is off here.
func (b *bench) stopped(app string) *pgx.Conn {
	b.t.Helper()
	opts := store.Settings()
	opts.AppName = app
	opts.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	conn, err := pg.Connect(b.t.Context(), b.url, opts)
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = conn.Close(detached(b.t)) })
	return conn
}

const lockAll = "SELECT FROM dispatcher.shards, dispatcher.group_shards FOR UPDATE"

// inTransaction stops between two statements.
func inTransaction(b *bench, app string) *pgx.Conn {
	conn := b.stopped(app)
	_, err := conn.Exec(b.t.Context(), "BEGIN")
	require.NoError(b.t, err)
	_, err = conn.Exec(b.t.Context(), lockAll)
	require.NoError(b.t, err)
	return conn
}

// inPipeline stops in the middle of sending: to the server it is not even idle.
func inPipeline(b *bench, app string) *pgx.Conn {
	conn := b.stopped(app)
	pipeline := conn.PgConn().StartPipeline(b.t.Context())
	pipeline.SendQueryParams(lockAll, nil, nil, nil, nil)
	pipeline.SendFlushRequest()
	require.NoError(b.t, pipeline.Flush())
	results, err := pipeline.GetResults()
	require.NoError(b.t, err)
	reader, ok := results.(*pgconn.ResultReader)
	require.True(b.t, ok)
	_, err = reader.Close()
	require.NoError(b.t, err)
	return conn
}

func TestStoppedHolderOfALockStopsNobodyForFiveSeconds(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(*bench, string) *pgx.Conn{"between statements": inTransaction, "in the middle of sending": inPipeline} {
		for verb, do := range map[string]func(*bench, message.ShardID, window.GroupShardID) error{
			"flush": func(b *bench, shard message.ShardID, _ window.GroupShardID) error {
				_, err := b.store.Flush(b.t.Context(), []store.Append{appendOf(shard, 1)})
				return err
			},
			"flush with keys": func(b *bench, shard message.ShardID, _ window.GroupShardID) error {
				_, _, err := pushKeyed(b, b.store, shard, store.Key{ID: keyOf("a")})
				return err
			},
			"work": func(b *bench, _ message.ShardID, gs window.GroupShardID) error {
				_, err := b.store.Work(b.t.Context(), []window.Change{{ID: gs, From: 1, To: 2}})
				return err
			},
			"work under lock": func(b *bench, _ message.ShardID, gs window.GroupShardID) error {
				_, _, err := b.store.WorkLocked(b.t.Context(), gs, window.Known{}, func(s store.State) (window.Change, error) { return grant(s), nil })
				return err
			},
		} {
			t.Run(verb+", stopped "+name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				shard := b.shard()
				gs := b.groupShard(shard)
				stop(b, "postrider-dispatcher/stopped")

				began := time.Now()
				err := do(b, shard, gs)

				require.NoError(t, err)
				require.Less(t, time.Since(began), 5*time.Second)
			})
		}
	}
}

func TestForeignHolderOfALockIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	b.groupShard(shard)
	holder := inTransaction(b, "psql")

	_, err := b.store.Flush(t.Context(), []store.Append{appendOf(shard, 1)})

	require.True(t, pg.IsLockTimeout(err), err)
	require.True(t, pg.IsRetryable(err))
	_, err = holder.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
}

// What a lost session may still do is not known while it lives, so nobody is told what became of its work.
func TestNobodyIsAnsweredWhileALostSessionLives(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	lost := b.stopped(scan[string](b, "SELECT current_setting('application_name')"))
	pid := lost.PgConn().PID()
	require.NoError(t, syscall.Kill(int(pid), syscall.SIGSTOP))
	thaw := func() { _ = syscall.Kill(int(pid), syscall.SIGCONT) }
	t.Cleanup(thaw)
	b.store.Lose(pid)

	var group errgroup.Group
	for range 2 {
		group.Go(func() error {
			_, _, err := b.store.FindFlush(t.Context(), []store.Sought{{Shard: shard, FlushID: flushID()}})
			if err == nil {
				return errors.New("answered")
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	thaw()
	require.Eventually(t, func() bool {
		_, found, err := b.store.FindFlush(t.Context(), []store.Sought{{Shard: shard, FlushID: flushID()}})
		return err == nil && !found
	}, 10*time.Second, time.Millisecond)
}
