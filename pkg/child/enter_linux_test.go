package child_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
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
	require.Equal(t, []int{before}, priorities(t), "of all threads that run something")
}

// priorities of many threads at one time, each priority once.
func priorities(t *testing.T) []int {
	t.Helper()
	const threads = 32
	found := make(chan int, threads)
	var wg, all sync.WaitGroup
	all.Add(threads)
	for range threads {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait() // so each is on a thread of its own
			priority, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
			if err != nil {
				t.Error(err)
			}
			found <- priority
		})
	}
	wg.Wait()
	close(found)
	var list []int
	for priority := range found {
		list = append(list, priority)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func TestAnErrorOfEnterIsLaunchesAndNothingRuns(t *testing.T) {
	t.Parallel()
	refused := errors.New("no such place")

	_, err := child.Launch(t.Context(), child.Spec{Program: "/bin/sh", Enter: func() error { return refused }})

	require.ErrorIs(t, err, refused)
}
