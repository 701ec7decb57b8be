package cli_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/redistest"
)

func TestServersThatAreNamedAreUsedAndLeftRunning(t *testing.T) {
	t.Parallel()
	database, redis := pgtest.NewServer(t, localpg.Options{}), redistest.Start(t)
	dir := upFolder(t)
	r := startUp(t, dir, []string{"POSTRIDER_DATABASE_URL=" + database.DSN("postgres"), "POSTRIDER_REDIS_URL=" + redis.URL()})

	require.Equal(t, "as given", r.await("database"))
	require.Equal(t, "as given", r.await("redis"))
	r.await("ready in")
	r.signal(os.Interrupt)
	require.Zero(t, r.end())

	require.NoDirExists(t, filepath.Join(dir, "postgres"))
	conn, err := pgx.Connect(t.Context(), database.DSN("postgres"))
	require.NoError(t, err, "it still answers")
	var schemas int
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_namespace WHERE nspname IN ('ingress', 'dispatcher', 'mesh')").Scan(&schemas))
	require.Equal(t, 3, schemas)
	require.NoError(t, conn.Close(t.Context()))
}

func TestDataOfAnotherPostgresVersionIsRefusedWithBothVersions(t *testing.T) {
	t.Parallel()
	dir := upFolder(t)
	first := startUp(t, dir, nil)
	first.await("ready in")
	first.signal(os.Interrupt)
	require.Zero(t, first.end())
	first.nothingLeft()
	version := filepath.Join(dir, "postgres", "data", "PG_VERSION")
	require.NoError(t, os.WriteFile(version, []byte("9\n"), 0o600))

	r := startUp(t, dir, nil)

	require.Equal(t, 1, r.end())
	require.Contains(t, r.text(), "belongs to PostgreSQL 9, but the programs found are version")
	require.Contains(t, r.text(), "move "+filepath.Join(dir, "postgres")+" away")
}

func TestWithoutPostgresProgramsABuildIsFetchedFromTheNamedRepository(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 100)
	repository := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		http.Error(w, "none today", http.StatusNotFound)
	}))
	t.Cleanup(repository.Close)

	r := startUp(t, upFolder(t), []string{"PGBIN=/nonexistent", "POSTRIDER_POSTGRES_DOWNLOAD_URL=" + repository.URL})

	require.Equal(t, 1, r.end())
	require.Contains(t, <-asked, "embedded-postgres-binaries")
	require.Contains(t, r.text(), "downloading a build of it, once")
	require.Contains(t, r.text(), "download PostgreSQL from "+repository.URL)
}
