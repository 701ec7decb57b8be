package pgtest_test

import (
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
)

func stamps() migrate.Set {
	return migrate.Set{Schema: "stamps", FS: fstest.MapFS{
		"0001_stamps.sql": {Data: []byte(`-- +goose Up
CREATE TABLE stamps.stamps (id bigint PRIMARY KEY, at timestamptz NOT NULL);
-- +goose StatementBegin
CREATE FUNCTION stamps.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT statement_timestamp()';
-- +goose StatementEnd
`)},
	}}
}

func letters() migrate.Set {
	return migrate.Set{Schema: "letters", FS: fstest.MapFS{
		"0001_letters.sql": {Data: []byte("-- +goose Up\nCREATE TABLE letters.letters (id bigint PRIMARY KEY);\n")},
	}}
}

func TestEachTestHasItsOwnDatabase(t *testing.T) {
	t.Parallel()
	for i := range 8 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, stamps(), letters())

			_, err := db.Exec(t.Context(), "INSERT INTO stamps.stamps VALUES (1, now())")
			require.NoError(t, err)

			var n int
			require.NoError(t, db.QueryRow(t.Context(), "SELECT count(*) FROM stamps.stamps, (SELECT count(*) FROM letters.letters) l").Scan(&n))
			require.Equal(t, 1, n)
		})
	}
}

func TestFrozenNowStandsUntilAdvanced(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, stamps())
	t0 := time.Date(2026, 3, 29, 1, 59, 59, 123456789, time.UTC)

	clk := pgtest.FreezeNow(t, db, "stamps", t0)
	clk.Advance(time.Hour)

	var now time.Time
	require.NoError(t, db.QueryRow(t.Context(), "SELECT stamps.now()").Scan(&now))
	require.True(t, now.Equal(t0.Truncate(time.Microsecond).Add(time.Hour)), "%v", now)
	require.True(t, now.Equal(clk.Now()))
}

const roles = `
DO $$ BEGIN CREATE ROLE pgtest_stamps; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
DO $$ BEGIN CREATE ROLE pgtest_letters; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
CREATE SCHEMA IF NOT EXISTS stamps AUTHORIZATION pgtest_stamps;
CREATE SCHEMA IF NOT EXISTS letters AUTHORIZATION pgtest_letters;`

func TestRoleSeesItsOwnSchemaOnly(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDatabase(t, pgtest.Roles{SQL: roles, Prefix: "pgtest_"}, stamps(), letters())

	asStamps := d.OpenAs("stamps", pg.Options{})

	_, err := asStamps.Exec(t.Context(), "SELECT * FROM stamps.stamps")
	require.NoError(t, err)
	_, err = asStamps.Exec(t.Context(), "SELECT * FROM letters.letters")
	require.Equal(t, "42501", pg.Code(err), "%v", err)
}

func TestOwnServerCanBeKilledAndComesBackWithItsData(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, localpg.Options{Durable: true})
	db, err := pg.Open(t.Context(), server.DSN("postgres"), pg.Options{})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	_, err = db.Exec(t.Context(), "CREATE TABLE kept AS SELECT 42 AS answer")
	require.NoError(t, err)

	require.NoError(t, server.Kill(t.Context()))
	_, err = db.Exec(t.Context(), "SELECT 1")
	require.True(t, pg.IsConnectionLost(err), "%v", err)
	require.NoError(t, server.Restart(t.Context()))

	var answer int
	require.NoError(t, db.QueryRow(t.Context(), "SELECT answer FROM kept").Scan(&answer))
	require.Equal(t, 42, answer)
}

// inner runs tests of this package in a process of its own, with $PGTEST_URL set.
func inner(t *testing.T, url, tests string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", tests, "-test.v")
	cmd.Env = append(os.Environ(), "PGTEST_URL="+url)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestAnotherServerMayBeUsedBySeveralProcesses(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, localpg.Options{TCP: true})
	var runs sync.WaitGroup
	for range 3 {
		runs.Go(func() {
			if out, err := inner(t, server.TCPDSN("postgres"), "TestEachTest|TestRole|TestFrozenNow"); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	runs.Wait()

	db, err := pg.Open(t.Context(), server.DSN("postgres"), pg.Options{})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	var left, templates int
	require.NoError(t, db.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE datname LIKE 't\_%' OR datname LIKE 'unfinished%'),
		count(*) FILTER (WHERE datname LIKE 'template\_%') FROM pg_database`).Scan(&left, &templates))
	require.Zero(t, left, "clones are dropped")
	require.Equal(t, 3, templates, "templates are made once for all")
}

func TestURLThatIsNoneFailsTheTest(t *testing.T) {
	t.Parallel()

	out, err := inner(t, "host=/tmp", "TestFrozenNow")

	require.Error(t, err)
	require.Contains(t, out, "PGTEST_URL")
}
