package localpg

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFolderThatTheServersUserCannotReachIsReplaced(t *testing.T) {
	t.Parallel()
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	home := filepath.Join(base, "home")
	require.NoError(t, os.Mkdir(home, 0o700))
	stranger := &account{uid: 54321, gid: 54321}
	wish := filepath.Join(home, "data")

	got, err := stranger.place(wish)
	require.NoError(t, err)
	again, err := stranger.place(wish)
	require.NoError(t, err)

	require.NotEqual(t, wish, got)
	require.Equal(t, got, again, "the same wish is the same folder for ever")
	var us *account
	ours, err := us.place(wish)
	require.NoError(t, err)
	require.Equal(t, wish, ours, "who starts the server himself reaches his own folders")
}

func TestSocketFolderOfSomeoneElseIsNotTrusted(t *testing.T) {
	t.Parallel()
	var us *account
	dir := t.TempDir()
	closed, open, link := filepath.Join(dir, "closed"), filepath.Join(dir, "open"), filepath.Join(dir, "link")
	require.NoError(t, os.Mkdir(closed, 0o700))
	require.NoError(t, os.Mkdir(open, 0o700))
	require.NoError(t, os.Chmod(open, 0o777)) // that is the case
	require.NoError(t, os.Symlink(closed, link))

	require.True(t, us.owns(closed))
	require.False(t, us.owns(open))
	require.False(t, us.owns(link))
	require.False(t, us.owns(filepath.Join(dir, "absent")))
}

func TestVersionsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": 15, "postgres (PostgreSQL) 18beta1": 18, "16\n": 16, "postgres (PostgreSQL) 9.6.24": 9,
	} {
		got, err := parseMajor(text)
		require.NoError(t, err)
		require.Equal(t, want, got, text)
	}
	_, err := parseMajor("nothing here")
	require.Error(t, err)
}
