package localpg

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFolderIsTakenAsWishedWhereItCanBeReached(t *testing.T) {
	t.Parallel()
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	home := filepath.Join(base, "home")
	require.NoError(t, os.Mkdir(home, 0o700))
	stranger := &account{uid: 54321, gid: 54321}
	var us *account

	got, err := us.place(filepath.Join(home, "data"))

	require.NoError(t, err)
	require.Equal(t, filepath.Join(home, "data"), got)
	require.False(t, stranger.reaches(home), "a private home")
	require.True(t, stranger.reaches("/"))
}

func TestSweepRemovesWhatBelongsToNobodyAnyMore(t *testing.T) {
	t.Parallel()
	base, wishes := t.TempDir(), t.TempDir()
	relocate := func(name, wish string) string {
		dir := filepath.Join(base, name)
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, wishFile), []byte(wish), 0o600))
		return dir
	}
	gone, kept, used := relocate("gone", "/nonexistent/pg"), relocate("kept", filepath.Join(wishes, "pg")), relocate("used", "/nonexistent/other")
	lock, err := lockFile(filepath.Join(used, ownerLock))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lock.Close()) })

	sweep(base)

	require.NoDirExists(t, gone)
	require.DirExists(t, kept, "the wish's folder is still there")
	require.DirExists(t, used, "somebody owns it")
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
