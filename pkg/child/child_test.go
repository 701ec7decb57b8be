package child_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"postrider.dev/pkg/child"
	"postrider.dev/pkg/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shell runs a script and returns the file with what it wrote.
func shell(t *testing.T, script string, env ...string) (*child.Process, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "out")
	out, err := os.Create(path) // the test's own file
	require.NoError(t, err)
	p, err := child.Launch(t.Context(), child.Spec{Program: "/bin/sh", Args: []string{"-c", script}, Env: env, Output: out})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Kill()) })
	return p, path
}

// await waits until the child has said it.
func await(t *testing.T, path, text string) {
	t.Helper()
	require.Eventually(t, func() bool {
		got, err := os.ReadFile(path) // the test's own file
		return err == nil && string(got) == text
	}, 20*time.Second, 5*time.Millisecond)
}

func TestChildEndsByItselfAndSaysHow(t *testing.T) {
	t.Parallel()
	p, path := shell(t, "echo $GIVEN$HOME; exit 3", "GIVEN=yes")

	require.ErrorContains(t, p.Err(), "exit status 3")
	require.True(t, p.Ended())
	await(t, path, "yes\n")
	require.NoError(t, p.Signal(syscall.SIGTERM), "a signal to an ended child is no error")
}

func TestChildHasItsOwnProcessGroup(t *testing.T) {
	t.Parallel()
	p, path := shell(t, "echo up; exec sleep 60", "PATH=/usr/bin:/bin")
	await(t, path, "up\n")

	group, err := syscall.Getpgid(p.PID())

	require.NoError(t, err)
	require.Equal(t, p.PID(), group, "Ctrl-C at the terminal does not reach it")
}

func TestStopGoesFromStepToStep(t *testing.T) {
	t.Parallel()
	p, path := shell(t, "trap 'echo term' TERM; trap 'echo quit; exit 0' QUIT; echo up; while :; do sleep 0.01; done", "PATH=/usr/bin:/bin")
	await(t, path, "up\n")

	err := p.Stop(t.Context(), clock.Real{},
		child.Step{Signal: syscall.SIGTERM, Patience: 500 * time.Millisecond}, child.Step{Signal: syscall.SIGQUIT, Patience: 20 * time.Second})

	require.NoError(t, err)
	require.NoError(t, p.Err())
	await(t, path, "up\nterm\nquit\n")
}

func TestStopKillsWhoDoesNotListen(t *testing.T) {
	t.Parallel()
	p, path := shell(t, "trap '' TERM; echo up; while :; do sleep 0.01; done", "PATH=/usr/bin:/bin")
	await(t, path, "up\n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()

	require.NoError(t, p.Stop(ctx, clock.Real{}, child.Step{Signal: syscall.SIGTERM, Patience: time.Hour}))

	require.True(t, p.Ended())
	require.NoError(t, p.Stop(ctx, clock.Real{}), "stopping twice is fine")
}

func TestMissingProgramIsAnError(t *testing.T) {
	t.Parallel()
	_, err := child.Launch(t.Context(), child.Spec{Program: "/nonexistent"})
	require.ErrorIs(t, err, os.ErrNotExist)
}
