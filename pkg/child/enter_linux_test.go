package child_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/child"
)

func TestChildInheritsWhatEnterMadeOfItsThreadAndNobodyElseDoes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out")
	out, err := os.Create(path) // the test's own file
	require.NoError(t, err)
	before, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	require.NoError(t, err)

	p, err := child.Launch(t.Context(), child.Spec{
		Program: "/bin/sh", Args: []string{"-c", "nice"}, Env: []string{"PATH=/usr/bin:/bin"}, Output: out,
		Enter: func() error { return syscall.Setpriority(syscall.PRIO_PROCESS, syscall.Gettid(), 19) },
	})

	require.NoError(t, err)
	require.NoError(t, p.Err())
	await(t, path, "19\n")
	after, err := syscall.Getpriority(syscall.PRIO_PROCESS, syscall.Getpid())
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestAnErrorOfEnterIsLaunchesAndNothingRuns(t *testing.T) {
	t.Parallel()
	refused := errors.New("no such place")

	_, err := child.Launch(t.Context(), child.Spec{Program: "/bin/sh", Enter: func() error { return refused }})

	require.ErrorIs(t, err, refused)
}
