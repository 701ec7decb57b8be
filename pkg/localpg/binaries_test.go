package localpg_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/localpg"
)

// fake makes a folder whose programs claim a version.
func fake(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	for _, program := range []string{"postgres", "initdb"} {
		script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
		require.NoError(t, os.WriteFile(filepath.Join(dir, program), []byte(script), 0o755)) // it is run
	}
	return dir
}

func TestPGBINDecidesAlone(t *testing.T) {
	dir := fake(t, "17.2 (Debian 17.2-1)")
	t.Setenv("PGBIN", dir)

	b, err := localpg.Find(t.Context())

	require.NoError(t, err)
	require.Equal(t, localpg.Binaries{Dir: dir, Major: 17}, b)
}

func TestProgramsOfThePathAreTaken(t *testing.T) {
	dir, err := filepath.EvalSymlinks(fake(t, "99beta1"))
	require.NoError(t, err)
	t.Setenv("PGBIN", "")
	t.Setenv("PATH", dir)

	b, err := localpg.Find(t.Context())

	require.NoError(t, err)
	require.Equal(t, localpg.Binaries{Dir: dir, Major: 99}, b)
}

func TestTooOldProgramsAreNamedInTheRefusal(t *testing.T) {
	dir := fake(t, "14.9")
	t.Setenv("PGBIN", dir)

	_, err := localpg.Find(t.Context())

	missing, ok := errors.AsType[*localpg.MissingError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, []string{dir}, missing.TooOld)
	require.ErrorContains(t, err, localpg.AptLine)
}

func TestFolderWithoutProgramsIsNamedInTheRefusal(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PGBIN", dir)

	_, err := localpg.Find(t.Context())

	missing, ok := errors.AsType[*localpg.MissingError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, []string{dir}, missing.Searched)
}
