package migrations_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/services/audit/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestSchemaIsWhatTheGoldenSays(t *testing.T) {
	t.Parallel()
	pgtest.GoldenSchema(t, "schema.sql", migrations.Set())
}

// caller is another service's schema, with an effect to audit.
func caller() migrate.Set {
	return migrate.Set{Schema: "dispatcher", FS: fstest.MapFS{"0001_queues.sql": {Data: []byte(
		"-- +goose Up\nCREATE TABLE dispatcher.queues (name text PRIMARY KEY);")}}}
}

// hardened is a database with one role a schema.
func hardened(t *testing.T) *pgtest.Database {
	t.Helper()
	sql, err := os.ReadFile("../../../deploy/postgres/roles.sql")
	require.NoError(t, err)
	return pgtest.NewDatabase(t, pgtest.Roles{SQL: string(sql), Prefix: "postrider_"}, migrations.Set(), caller())
}

const enqueue = "SELECT audit.enqueue('acme', 'key:1', 'queue.create', 'queues/a', '{\"shards\": 1}')"

func count(t *testing.T, db *pg.DB) int {
	t.Helper()
	var n int
	require.NoError(t, db.QueryRow(t.Context(), "SELECT count(*) FROM audit.outbox").Scan(&n))
	return n
}

func TestEntryAndEffectAreCommittedTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	d := hardened(t)
	dispatcher, audit := d.OpenAs("dispatcher", pg.Options{}), d.OpenAs("audit", pg.Options{})
	create := func(name string, then error) error {
		return dispatcher.InTx(t.Context(), pg.ReadCommitted, func(tx pg.Tx) error {
			if _, err := tx.Exec(t.Context(), "INSERT INTO dispatcher.queues VALUES ($1)", name); err != nil {
				return err
			}
			if _, err := tx.Exec(t.Context(), enqueue); err != nil {
				return err
			}
			return then
		})
	}

	require.NoError(t, create("a", nil))
	require.Equal(t, 1, count(t, audit))
	require.Error(t, create("b", errors.New("changed my mind")))
	require.True(t, pg.IsUnique(create("a", nil), ""))

	require.Equal(t, 1, count(t, audit))
}

func TestRolesReachOnlyTheExportedFunctionOfAnothersSchema(t *testing.T) {
	t.Parallel()
	d := hardened(t)
	for _, schema := range []string{"ingress", "dispatcher", "scheduler", "mesh"} {
		db := d.OpenAs(schema, pg.Options{MaxConns: 1})
		_, err := db.Exec(t.Context(), enqueue)
		require.NoError(t, err, schema)
		for _, sql := range []string{
			"SELECT count(*) FROM audit.outbox",
			"INSERT INTO audit.outbox (tenant_id, occurred_at, actor, action, resource, outcome, detail) VALUES ('a', now(), 'a', 'a', 'a', 'ok', '{}')",
			"DELETE FROM audit.outbox",
			"SELECT audit.now()",
			"SELECT * FROM audit.goose_db_version",
			"CREATE TABLE audit.mine ()",
			"CREATE TABLE public.mine ()",
			"CREATE SCHEMA mine",
			"CREATE TEMPORARY TABLE mine ()",
		} {
			_, err := db.Exec(t.Context(), sql)
			require.Equal(t, "42501", pg.Code(err), "%s as %s: %v", sql, schema, err)
		}
	}
	_, err := d.OpenAs("audit", pg.Options{}).Exec(t.Context(), "SELECT count(*) FROM dispatcher.queues")
	require.Equal(t, "42501", pg.Code(err), "%v", err)
}

func TestRolesMayBeMadeAgain(t *testing.T) {
	t.Parallel()
	sql, err := os.ReadFile("../../../deploy/postgres/roles.sql")
	require.NoError(t, err)
	db := hardened(t).Open(pg.Options{})

	_, err = db.Exec(t.Context(), string(sql))

	require.NoError(t, err)
}

func TestEntryHoldsWhatWasSaidAndTheDatabasesTime(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Set())
	t0 := time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
	pgtest.FreezeNow(t, db, "audit", t0)

	_, err := db.Exec(t.Context(), "SELECT audit.enqueue('acme', 'key:1', 'dlq.redrive', 'queues/a', '{\"n\": 12345678901234567890}', 'refused')")
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), "SELECT audit.enqueue(NULL, 'system', 'boot', 'host/a')")
	require.NoError(t, err)

	rows, err := db.Query(t.Context(), `SELECT concat_ws(' ', tenant_id, actor, action, resource, outcome, detail), occurred_at = $1 FROM audit.outbox ORDER BY id`, t0)
	require.NoError(t, err)
	var got []string
	for rows.Next() {
		var line string
		var same bool
		require.NoError(t, rows.Scan(&line, &same))
		require.True(t, same)
		got = append(got, line)
	}
	require.NoError(t, rows.Err())
	require.Equal(t, []string{
		`acme key:1 dlq.redrive queues/a refused {"n": 12345678901234567890}`,
		`_system system boot host/a ok {}`,
	}, got)
}

func TestWhatCannotBeRecordedIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrations.Set())
	long := func(n int) string { return strings.Repeat("x", n) }
	for name, args := range map[string][]any{
		"tenant":           {"No Such", "a", "b", "c", "{}", "ok"},
		"empty tenant":     {"", "a", "b", "c", "{}", "ok"},
		"no actor":         {"t", nil, "b", "c", "{}", "ok"},
		"empty actor":      {"t", "", "b", "c", "{}", "ok"},
		"long actor":       {"t", long(1025), "b", "c", "{}", "ok"},
		"no action":        {"t", "a", nil, "c", "{}", "ok"},
		"long action":      {"t", "a", long(257), "c", "{}", "ok"},
		"long resource":    {"t", "a", "b", long(4097), "{}", "ok"},
		"no detail":        {"t", "a", "b", "c", nil, "ok"},
		"detail no object": {"t", "a", "b", "c", "[]", "ok"},
		"long detail":      {"t", "a", "b", "c", `{"x":"` + long(65536) + `"}`, "ok"},
		"outcome":          {"t", "a", "b", "c", "{}", "maybe"},
		"no outcome":       {"t", "a", "b", "c", "{}", nil},
	} {
		_, err := db.Exec(t.Context(), "SELECT audit.enqueue($1, $2, $3, $4, $5, $6)", args...)
		require.True(t, pg.IsDataError(err), "%s: %v", name, err)
	}
	require.Equal(t, 0, count(t, db))
}

func TestEnqueueIsNotFooledByTheCallersSearchPath(t *testing.T) {
	t.Parallel()
	d := hardened(t)
	trap := d.Open(pg.Options{MaxConns: 1})
	_, err := trap.Exec(t.Context(), `CREATE SCHEMA trap; GRANT USAGE ON SCHEMA trap TO PUBLIC;
		CREATE FUNCTION trap.now() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE FUNCTION trap.coalesce(text, text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;`)
	require.NoError(t, err)

	_, err = d.OpenAs("dispatcher", pg.Options{RuntimeParams: map[string]string{"search_path": "trap, pg_catalog"}}).Exec(t.Context(), enqueue)

	require.NoError(t, err)
}
