package migrate_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// set is a schema "shop" of the given files' SQL, numbered in order.
func set(sqls ...string) migrate.Set {
	files := fstest.MapFS{}
	for i, sql := range sqls {
		files["000"+string(rune('1'+i))+"_step.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\n" + sql)}
	}
	return migrate.Set{Schema: "shop", FS: files}
}

const (
	goods  = "CREATE TABLE shop.goods (id int PRIMARY KEY);"
	price  = "ALTER TABLE shop.goods ADD COLUMN price int;"
	broken = "CREATE TABLE shop.more (); SELECT 1/0;"
)

func up(t *testing.T, dsn string, s migrate.Set) ([]int64, error) {
	t.Helper()
	return migrate.Up(t.Context(), clock.Real{}, dsn, s)
}

func version(t *testing.T, dsn string) int64 {
	t.Helper()
	v, err := migrate.Version(t.Context(), dsn, set(goods))
	require.NoError(t, err)
	return v
}

func TestUpAppliesWhatIsMissingOnce(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDatabase(t, pgtest.Roles{}).URL()
	require.Equal(t, int64(0), version(t, dsn))

	applied, err := up(t, dsn, set(goods))
	require.NoError(t, err)
	require.Equal(t, []int64{1}, applied)
	applied, err = up(t, dsn, set(goods, price))
	require.NoError(t, err)
	require.Equal(t, []int64{2}, applied)
	applied, err = up(t, dsn, set(goods, price))
	require.NoError(t, err)
	require.Empty(t, applied)

	require.Equal(t, int64(2), version(t, dsn))
}

func TestUpWaitsForAServerThatIsStarting(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, localpg.Options{})
	require.NoError(t, server.Kill(t.Context()))
	migrated := make(chan error, 1)
	go func() {
		_, err := migrate.Up(t.Context(), clock.Real{}, server.DSN("postgres"), set(goods))
		migrated <- err
	}()

	require.NoError(t, server.Restart(t.Context()))

	require.NoError(t, <-migrated)
	require.Equal(t, int64(1), version(t, server.DSN("postgres")))
}

func TestOldCodeAcceptsADatabaseThatIsAhead(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDatabase(t, pgtest.Roles{}, set(goods, price)).URL()

	applied, err := up(t, dsn, set(goods))

	require.NoError(t, err)
	require.Empty(t, applied)
	require.Equal(t, int64(2), version(t, dsn))
}

func TestUpToStopsAtAVersion(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDatabase(t, pgtest.Roles{}).URL()

	_, err := migrate.UpTo(t.Context(), clock.Real{}, dsn, set(goods, price), 1)

	require.NoError(t, err)
	require.Equal(t, int64(1), version(t, dsn))
}

func TestFailedStepLeavesNothingAndTheStepsBeforeIt(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDatabase(t, pgtest.Roles{})

	applied, err := up(t, d.URL(), set(goods, broken, price))

	require.Equal(t, "22012", pg.Code(err), "%v", err)
	require.Equal(t, []int64{1}, applied)
	require.Equal(t, int64(1), version(t, d.URL()))
	var more bool
	require.NoError(t, d.Open(pg.Options{}).QueryRow(t.Context(), "SELECT to_regclass('shop.more') IS NOT NULL").Scan(&more))
	require.False(t, more)
}

func TestRunsAtTheSameTimeApplyEachStepOnce(t *testing.T) {
	t.Parallel()
	dsn := pgtest.NewDatabase(t, pgtest.Roles{}).URL()
	var mu sync.Mutex
	var all []int64
	var runs sync.WaitGroup
	for range 6 {
		runs.Go(func() {
			applied, err := migrate.Up(t.Context(), clock.Real{}, dsn, set(goods, price))
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, applied...)
		})
	}
	runs.Wait()

	require.ElementsMatch(t, []int64{1, 2}, all)
}

func TestUnreadableVersionIsAnErrorNotAFreshSchema(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"tables without a version table": "CREATE SCHEMA shop; CREATE TABLE shop.goods (id int)",
		"empty version table":            "CREATE SCHEMA shop; CREATE TABLE shop.goose_db_version (id int, version_id bigint, is_applied bool, tstamp timestamp)",
		"foreign version table":          "CREATE SCHEMA shop; CREATE TABLE shop.goose_db_version (something text)",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := pgtest.NewDatabase(t, pgtest.Roles{})
			_, err := d.Open(pg.Options{}).Exec(t.Context(), sql)
			require.NoError(t, err)

			_, err = up(t, d.URL(), set(goods))
			_, verr := migrate.Version(t.Context(), d.URL(), set(goods))

			for _, err := range []error{err, verr} {
				_, ok := errors.AsType[*migrate.UnreadableError](err)
				require.True(t, ok, "%v", err)
			}
		})
	}
}

func TestVersionTableOfAnotherRoleIsUnreadable(t *testing.T) {
	t.Parallel()
	roles := pgtest.Roles{Prefix: "migrate_", SQL: `
		DO $$ BEGIN CREATE ROLE migrate_shop; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
		DO $$ BEGIN CREATE ROLE migrate_thief; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$;
		CREATE SCHEMA IF NOT EXISTS shop AUTHORIZATION migrate_shop;
		GRANT USAGE ON SCHEMA shop TO migrate_thief;`}
	d := pgtest.NewDatabase(t, roles, set(goods))

	_, err := up(t, d.URLAs("thief"), set(goods, price))

	_, ok := errors.AsType[*migrate.UnreadableError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "42501", pg.Code(err))
}

func TestBusyTableIsTriedAgain(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDatabase(t, pgtest.Roles{}, set(goods))
	db := d.Open(pg.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	locked, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- db.InTx(ctx, pg.ReadCommitted, func(tx pg.Tx) error {
			if _, err := tx.Exec(ctx, "LOCK TABLE shop.goods"); err != nil {
				return err
			}
			close(locked)
			_, err := tx.Exec(ctx, "SELECT pg_sleep(6)") // longer than one attempt waits for the lock
			return err
		})
	}()
	<-locked

	applied, err := up(t, d.URL(), set(goods, price))

	require.NoError(t, err)
	require.Equal(t, []int64{2}, applied)
	require.NoError(t, <-done)
}

func TestBadSetsAreRefusedWithEveryProblem(t *testing.T) {
	t.Parallel()
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for name, s := range map[string]migrate.Set{
		"no files":    {Schema: "shop", FS: fstest.MapFS{}},
		"schema name": {Schema: `shop"; DROP`, FS: set(goods).FS},
		"gap":         {Schema: "shop", FS: fstest.MapFS{"0001_a.sql": file("-- +goose Up"), "0003_b.sql": file("-- +goose Up")}},
		"name":        {Schema: "shop", FS: fstest.MapFS{"one.sql": file("-- +goose Up")}},
		"way down":    {Schema: "shop", FS: fstest.MapFS{"0001_a.sql": file("-- +goose Up\nSELECT 1;\n--  +goose down\nSELECT 2;")}},
	} {
		require.Error(t, s.Validate(), name)
	}
	bad := migrate.Set{Schema: "X", FS: fstest.MapFS{"two.sql": file("-- +goose Down")}}
	require.ErrorContains(t, bad.Validate(), "schema name")
	require.ErrorContains(t, bad.Validate(), "file name")
	require.NoError(t, set(goods, price).Validate())
	newest, err := set(goods, price).Newest()
	require.NoError(t, err)
	require.Equal(t, int64(2), newest)
}

func TestDumpIsTheSameForTheSameSchema(t *testing.T) {
	t.Parallel()
	bin, err := localpg.Find(t.Context())
	require.NoError(t, err)
	dump := func(s migrate.Set) string {
		got, err := migrate.Dump(t.Context(), bin.Path("pg_dump"), pgtest.NewDatabase(t, pgtest.Roles{}, s).URL(), "shop")
		require.NoError(t, err)
		return got
	}
	function := "-- +goose StatementBegin\nCREATE FUNCTION shop.f() RETURNS int LANGUAGE plpgsql AS $$\nBEGIN\n-- kept\n\nRETURN 1;\nEND $$;\n-- +goose StatementEnd"

	two, one := dump(set(goods, price, function)), dump(set("CREATE TABLE shop.goods (id int PRIMARY KEY, price int);\n"+function))

	require.Equal(t, one, two, "two ways to the same schema")
	require.Contains(t, one, "-- kept\n\nRETURN 1;")
	require.Contains(t, one, "CREATE TABLE shop.goods (")
	require.NotContains(t, one, "goose")
	require.NotContains(t, one, "Dumped by")
	require.NotContains(t, one, "restrict")
}
