package pg_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
)

// classes is every question one can ask of an error.
func classes(err error) string {
	var s strings.Builder
	for _, c := range []struct {
		name string
		is   bool
	}{
		{"unique", pg.IsUnique(err, "")},
		{"norows", pg.IsNoRows(err)},
		{"serialization", pg.IsSerialization(err)},
		{"locktimeout", pg.IsLockTimeout(err)},
		{"shutdown", pg.IsShutdown(err)},
		{"data", pg.IsDataError(err)},
		{"lost", pg.IsConnectionLost(err)},
		{"unknown", pg.IsOutcomeUnknown(err)},
		{"retryable", pg.IsRetryable(err)},
		{"unavailable", pg.IsUnavailable(err)},
	} {
		if c.is {
			s.WriteString(" " + c.name)
		}
	}
	return s.String()
}

func TestServersErrorsAreClassified(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, accounts())
	for sql, want := range map[string]string{
		"INSERT INTO bank.accounts VALUES (3, 'one', 0)":                " unique data",
		"INSERT INTO bank.accounts VALUES (3, 'three', -1)":             " data",
		"INSERT INTO bank.accounts VALUES (3, 'much too long name', 1)": " data",
		"SELECT 1/0":                  " data",
		"SELECT nothing FROM nowhere": "",
		"DO $$ BEGIN RAISE serialization_failure; END $$":     " serialization retryable",
		"DO $$ BEGIN RAISE deadlock_detected; END $$":         " serialization retryable",
		"DO $$ BEGIN RAISE lock_not_available; END $$":        " locktimeout retryable",
		"DO $$ BEGIN RAISE read_only_sql_transaction; END $$": " unavailable",
		"DO $$ BEGIN RAISE disk_full; END $$":                 " unavailable",
		"DO $$ BEGIN RAISE too_many_connections; END $$":      " retryable unavailable",
		"DO $$ BEGIN RAISE out_of_memory; END $$":             "", // it may be the statement's own fault
		"DO $$ BEGIN RAISE admin_shutdown; END $$":            " shutdown lost retryable unavailable",
	} {
		_, err := db.Exec(t.Context(), sql)
		require.Error(t, err, sql)
		require.Equal(t, want, classes(fmt.Errorf("wrapped: %w", err)), "%s: %v", sql, err)
	}
	var id int
	require.Equal(t, " norows", classes(db.QueryRow(t.Context(), "SELECT id FROM bank.accounts WHERE id = 9").Scan(&id)))
	require.Empty(t, classes(nil))
	require.Empty(t, classes(errors.New("other")))
}

func TestUniqueConstraintIsToldByName(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, accounts())

	_, err := db.Exec(t.Context(), "INSERT INTO bank.accounts VALUES (3, 'one', 0)")

	require.True(t, pg.IsUnique(err, "accounts_name_uq"))
	require.False(t, pg.IsUnique(err, "accounts_id_pk"))
}

func TestEndOfTheCallersContextIsNoLostConnection(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	_, err := db.Exec(ctx, "SELECT 1")

	require.ErrorIs(t, err, context.Canceled)
	require.Empty(t, classes(err))
}

func TestTerminatedSessionIsALostConnection(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn, err := db.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = db.Exec(t.Context(), "SELECT pg_terminate_backend($1)", conn.Conn().PgConn().PID())
	require.NoError(t, err)

	_, err = conn.Exec(t.Context(), "SELECT 1")
	require.Contains(t, classes(err), " lost", "%v", err)
	_, err = conn.Exec(t.Context(), "SELECT 1")
	require.Contains(t, classes(err), " lost", "closed before: %v", err)
}

func TestAbsentServerIsALostConnection(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{"postgres://u@127.0.0.1:1/d", "postgres://u@/d?host=/tmp/absent"} {
		_, err := pgx.Connect(t.Context(), dsn)
		require.Equal(t, " lost retryable unavailable", classes(err), "%v", err)
	}
}

func TestStatementCutOffByAKilledServerIsUnknown(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, localpg.Options{})
	conn, err := pg.Connect(t.Context(), server.DSN("postgres"), pg.Options{})
	require.NoError(t, err)
	watch, err := pg.Connect(t.Context(), server.DSN("postgres"), pg.Options{})
	require.NoError(t, err)
	cut := make(chan error, 1)
	go func() {
		_, err := conn.Exec(t.Context(), "SELECT pg_sleep(600)")
		cut <- err
	}()
	require.Eventually(t, func() bool { // what was never sent is certain not to have happened
		running := 0
		err := watch.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'").Scan(&running)
		return err == nil && running == 1
	}, 10*time.Second, 10*time.Millisecond)
	require.NoError(t, server.Kill(t.Context()))
	err = <-cut

	require.Contains(t, classes(err), " lost", "%v", err)
	require.True(t, pg.IsOutcomeUnknown(pg.CommitError(err)), "%v", err)
	require.NoError(t, conn.Close(t.Context()))
	_ = watch.Close(t.Context()) // its server is gone
}

func TestCommitErrorIsCertainWhereTheServerSaysSo(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, accounts())

	_, refused := db.Exec(t.Context(), "INSERT INTO bank.accounts VALUES (1, 'x', 0)")

	for _, err := range []error{nil, refused, pgx.ErrNoRows, pgx.ErrTxCommitRollback} {
		require.Equal(t, err, pg.CommitError(err))
	}
	require.True(t, pg.IsOutcomeUnknown(pg.CommitError(errors.New("connection went silent"))))
	require.True(t, pg.IsOutcomeUnknown(pg.CommitError(context.DeadlineExceeded)))
	require.False(t, pg.IsRetryable(pg.CommitError(context.DeadlineExceeded)))
}
