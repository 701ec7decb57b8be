package up_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"postrider.dev/stack/internal/up"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestASecretIsMadeOnceAndKeptPrivate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	first, err := up.Secret(dir, "admin.key", up.NewAdminKey)
	require.NoError(t, err)

	again, err := up.Secret(dir, "admin.key", func() (string, error) { return "", errors.New("asked again") })

	require.NoError(t, err)
	require.Equal(t, first, again)
	require.Regexp(t, `^prk_admin_[0-9A-Za-z]{32}$`, first)
	info, err := os.Stat(filepath.Join(dir, "admin.key"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1)
}

func TestAnEmptySecretFileIsNoSecret(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cluster.secret"), []byte("\n"), 0o600))

	secret, err := up.Secret(dir, "cluster.secret", up.RandomSecret)

	require.NoError(t, err)
	require.Len(t, secret, 43)
}

func TestASecretThatCannotBeKeptIsAnError(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))

	_, err := up.Secret(file, "admin.key", up.NewAdminKey)

	require.Error(t, err)
}

func TestSecretsDiffer(t *testing.T) {
	t.Parallel()
	seen := sync.Map{}
	for range 100 {
		key, err := up.NewAdminKey()
		require.NoError(t, err)
		_, before := seen.LoadOrStore(key, true)
		require.False(t, before)
	}
}

func TestATakenPortIsNamedWithAWayOut(t *testing.T) {
	t.Parallel()
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, taken.Close()) })
	port := taken.Addr().(*net.TCPAddr).Port

	err = up.Ports{HTTP: port, GRPC: port, Admin: port}.Check(t.Context(), false)

	require.ErrorContains(t, err, "is taken by another program")
	require.ErrorContains(t, err, "--port")
}

func TestHostsAreTenPortsApart(t *testing.T) {
	t.Parallel()
	require.Equal(t, up.Ports{HTTP: 7410, GRPC: 7411, Admin: 7412, Mesh: 7413, Internal: 7414}, up.PortsOf(7400, 1))
}
