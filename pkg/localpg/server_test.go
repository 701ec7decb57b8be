package localpg_test

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
)

// tempDir is a folder a server's user can reach, which t.TempDir is not for root.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "localpg-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return filepath.Join(dir, "pg")
}

func start(t *testing.T, opts localpg.Options) *localpg.Server {
	t.Helper()
	if opts.Dir == "" {
		opts.Dir = tempDir(t)
	}
	server, err := localpg.Start(t.Context(), clock.Real{}, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.WithoutCancel(t.Context()))) })
	return server
}

func query[T any](t *testing.T, dsn, sql string) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	var v T
	require.NoError(t, conn.QueryRow(t.Context(), sql).Scan(&v))
	return v
}

// makeTable commits a table named kept.
func makeTable(t *testing.T, dsn string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "CREATE TABLE kept ()")
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
}

func TestServerKeepsItsDataOverStopAndStart(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	server := start(t, localpg.Options{Dir: dir, Durable: true})
	makeTable(t, server.DSN("postgres"))
	exited := server.Exited()

	require.NoError(t, server.Stop(t.Context()))
	<-exited
	require.NoError(t, server.Stop(t.Context()), "stopping twice is fine")

	again := start(t, localpg.Options{Dir: dir, Durable: true})
	for _, name := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
		require.Equal(t, "on", query[string](t, again.DSN("postgres"), "SELECT current_setting('"+name+"')"), name)
	}
	require.True(t, query[bool](t, again.DSN("postgres"), "SELECT to_regclass('kept') IS NOT NULL"))
}

func TestServerIsPrivateAndSetAsAsked(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Options{MaxConnections: 17, Settings: map[string]string{"work_mem": "3MB"}})
	dsn := server.DSN("postgres")

	u, err := url.Parse(dsn)
	require.NoError(t, err)
	info, err := os.Stat(u.Query().Get("host"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o700), info.Mode().Perm(), "nobody else enters the socket's folder")
	for name, want := range map[string]string{
		"listen_addresses": "", "max_connections": "17", "work_mem": "3MB", "fsync": "off", "server_encoding": "UTF8", "TimeZone": "UTC",
	} {
		require.Equal(t, want, query[string](t, dsn, "SELECT current_setting('"+name+"')"), name)
	}
	require.Empty(t, server.TCPDSN("postgres"))
}

func TestTCPNeedsTheRandomPassword(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Options{TCP: true})
	require.Equal(t, 1, query[int](t, server.TCPDSN("postgres"), "SELECT 1"))

	u, err := url.Parse(server.TCPDSN("postgres"))
	require.NoError(t, err)
	u.User = url.UserPassword("postgres", "guess")
	_, err = pgx.Connect(t.Context(), u.String())

	refusal, ok := errors.AsType[*pgconn.PgError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "28P01", refusal.Code)
}

func TestFolderBelongsToOneOwner(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	start(t, localpg.Options{Dir: dir})

	_, err := localpg.Start(t.Context(), clock.Real{}, localpg.Options{Dir: dir})

	require.ErrorIs(t, err, localpg.ErrInUse)
}

func TestDataOfAnotherVersionIsRefusedByName(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "data"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "data", "PG_VERSION"), []byte("9\n"), 0o600))

	_, err := localpg.Start(t.Context(), clock.Real{}, localpg.Options{Dir: dir})

	refusal, ok := errors.AsType[*localpg.VersionError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, 9, refusal.Data)
	require.GreaterOrEqual(t, refusal.Binaries, localpg.MinMajor)
}

func TestFailedStartShowsTheServersLog(t *testing.T) {
	t.Parallel()

	_, err := localpg.Start(t.Context(), clock.Real{}, localpg.Options{Dir: tempDir(t), Settings: map[string]string{"shared_buffers": "nonsense"}})

	failure, ok := errors.AsType[*localpg.StartError](err)
	require.True(t, ok, "%v", err)
	require.Contains(t, failure.Log, "shared_buffers")
}

func TestUnfinishedClusterIsMadeAnew(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	half := filepath.Join(dir, "data.unfinished")
	require.NoError(t, os.MkdirAll(half, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(half, "PG_VERSION"), []byte("15"), 0o600))

	server := start(t, localpg.Options{Dir: dir})

	require.Equal(t, 1, query[int](t, server.DSN("postgres"), "SELECT 1"))
	require.NoDirExists(t, half)
}

func TestLongPathIsNoObstacleToTheSocket(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Options{Dir: filepath.Join(filepath.Dir(tempDir(t)), strings.Repeat("long", 30))})

	require.Equal(t, 1, query[int](t, server.DSN("postgres"), "SELECT 1"))
}

func TestKilledServerRecoversWhatWasCommitted(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Options{})
	dsn := server.DSN("postgres")
	makeTable(t, dsn)

	for range 3 {
		require.NoError(t, server.Kill(t.Context()))
		require.NoError(t, server.Kill(t.Context()), "killing twice is fine")
		_, err := pgx.Connect(t.Context(), dsn)
		require.Error(t, err)
		require.NoError(t, server.Restart(t.Context()))
		require.True(t, query[bool](t, dsn, "SELECT to_regclass('kept') IS NOT NULL"))
	}
}

func TestFrozenServerAnswersAfterTheThaw(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Options{})
	dsn := server.DSN("postgres")

	require.NoError(t, server.Freeze(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := pgx.Connect(ctx, dsn)
	require.Error(t, err)
	require.NoError(t, server.Thaw(t.Context()))

	require.Equal(t, 1, query[int](t, dsn, "SELECT 1"))
}

func TestServerEndsWithItsKilledOwnerAndTheFolderIsFree(t *testing.T) {
	t.Parallel()
	dir := tempDir(t)
	owner := exec.CommandContext(t.Context(), os.Args[0])
	owner.Env = append(os.Environ(), ownerEnv+"="+dir)
	owner.Stderr = os.Stderr
	out, err := owner.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	dsn, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	makeTable(t, strings.TrimSpace(dsn))

	require.NoError(t, owner.Process.Kill())
	require.Error(t, owner.Wait())

	server := start(t, localpg.Options{Dir: dir}) // waits for the old server's end, or brings it about
	require.True(t, query[bool](t, server.DSN("postgres"), "SELECT to_regclass('kept') IS NOT NULL"))
}

func TestStopBeyondItsTimeIsImmediate(t *testing.T) {
	t.Parallel()
	server := start(t, localpg.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	require.NoError(t, server.Stop(ctx))
	<-server.Exited()
}

func TestServerRunsForAFolderItsUserCannotReach(t *testing.T) {
	t.Parallel()
	home, err := os.MkdirTemp("/tmp", "localpg-home-") // closed to others
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(home)) })
	dir := filepath.Join(home, "pg")
	server := start(t, localpg.Options{Dir: dir})
	makeTable(t, server.DSN("postgres"))
	data := server.DataDir()
	t.Cleanup(func() { // after the server has stopped: the mark of a relocated folder allows the next sweep, and this one is tidy
		if !strings.HasPrefix(data, home) {
			require.NoError(t, os.RemoveAll(filepath.Dir(data)))
		}
	})
	require.NoError(t, server.Stop(t.Context()))

	again := start(t, localpg.Options{Dir: dir})

	require.Equal(t, data, again.DataDir(), "the same wish is the same folder for ever")
	require.True(t, query[bool](t, again.DSN("postgres"), "SELECT to_regclass('kept') IS NOT NULL"))
	require.NoError(t, again.Stop(t.Context()))
}
