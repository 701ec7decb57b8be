package cli_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/porttest"
	"postrider.dev/stack/internal/up"
)

// upPatience bounds a start or a stop on a busy machine.
const upPatience = 90 * time.Second

// running is `postrider up` as a process of its own.
type running struct {
	t     *testing.T
	cmd   *exec.Cmd
	dir   string
	port  int
	lines chan string   // closed at the end of its output
	ended chan struct{} // closed at the end of the process

	mu     sync.Mutex // guards output
	output string
}

// freePort returns a port of two free hosts, below the ports that systems give to outgoing connections. It is this test's until its end, whoever else
// looks for one at the same time.
func freePort(t *testing.T) int {
	t.Helper()
	for {
		port := 10_000 + 50*rand.IntN(400)
		if !porttest.Reserve(t, port) {
			continue
		}
		if up.PortsOf(port, 0).Check(t.Context(), true) == nil && up.PortsOf(port, 1).Check(t.Context(), true) == nil {
			return port
		}
	}
}

// upFolder is a data folder that an unprivileged PostgreSQL can reach.
func upFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "up")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// startUp runs `postrider up` in dir; it is killed with the test if it still runs then.
func startUp(t *testing.T, dir string, environ []string, args ...string) *running {
	t.Helper()
	port := freePort(t)
	cmd := program(context.WithoutCancel(t.Context()), environ, append([]string{"up", "--data", dir, "--port", strconv.Itoa(port)}, args...)...)
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout, cmd.Stderr = writer, writer
	r := &running{t: t, cmd: cmd, dir: dir, port: port, lines: make(chan string, 1000), ended: make(chan struct{})}
	require.NoError(t, cmd.Start())
	require.NoError(t, writer.Close())
	go func() { // ends with the process and its children
		defer close(r.lines)
		defer reader.Close() //nolint:errcheck // read to its end
		for in := bufio.NewScanner(reader); in.Scan(); {
			r.mu.Lock()
			r.output += in.Text() + "\n"
			r.mu.Unlock()
			r.lines <- in.Text()
		}
	}()
	go func() {
		_ = cmd.Wait() // the exit code says how
		close(r.ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if t.Failed() {
			t.Logf("output of up:\n%s", r.text())
			logs, _ := filepath.Glob(filepath.Join(dir, "*.log")) // the pattern is right
			for _, name := range logs {
				text, _ := os.ReadFile(name)
				t.Logf("%s:\n%s", filepath.Base(name), text)
			}
		}
	})
	return r
}

func (r *running) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.output
}

// await returns the rest of the first line that begins with prefix.
func (r *running) await(prefix string) string {
	r.t.Helper()
	late := time.After(upPatience)
	for {
		select {
		case line, ok := <-r.lines:
			require.True(r.t, ok, "it ended without a line %q:\n%s", prefix, r.text())
			if rest, found := strings.CutPrefix(line, prefix); found {
				return strings.TrimSpace(rest)
			}
		case <-late:
			r.t.Fatalf("no line %q after %s:\n%s", prefix, upPatience, r.text())
		}
	}
}

// end waits for the process and everything that holds its output, and returns its exit code.
func (r *running) end() int {
	r.t.Helper()
	late := time.After(upPatience)
	select {
	case <-r.ended:
	case <-late:
		r.t.Fatalf("it did not end in %s:\n%s", upPatience, r.text())
	}
	for {
		select {
		case _, ok := <-r.lines:
			if !ok {
				return r.cmd.ProcessState.ExitCode()
			}
		case <-late:
			r.t.Fatalf("something it started still holds its output after %s", upPatience)
		}
	}
}

func (r *running) signal(sig os.Signal) { require.NoError(r.t, r.cmd.Process.Signal(sig)) }

// nothingLeft waits until no process uses the data folder: neither PostgreSQL nor a host.
func (r *running) nothingLeft() {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return len(processesOf(r.dir)) == 0 }, upPatience, 50*time.Millisecond, "left: %v", processesOf(r.dir))
}

// processesOf lists the living processes whose command line, environment or working folder names dir.
func processesOf(dir string) []string {
	var found []string
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, e := range entries {
		line, _ := os.ReadFile(filepath.Join(e, "cmdline"))
		environ, _ := os.ReadFile(filepath.Join(e, "environ"))
		cwd, _ := os.Readlink(filepath.Join(e, "cwd"))
		if strings.Contains(string(line)+string(environ), dir) || strings.HasPrefix(cwd, dir) {
			found = append(found, e+" "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

func ready(t *testing.T, port int) bool {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/readyz", port+2), nil)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

func TestUpBecomesReadyKeepsItsKeyAndDataAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	dir := upFolder(t)
	first := startUp(t, dir, nil)
	key := first.await("key")
	example := first.await("try")
	require.Contains(t, first.await("ready in"), fmt.Sprintf("http://127.0.0.1:%d", first.port))
	require.Contains(t, example, key)
	info, err := os.Stat(filepath.Join(dir, "admin.key"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	out, err := exec.CommandContext(t.Context(), "sh", "-c", example).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "PUSH_STATUS_QUEUED")
	first.signal(os.Interrupt)
	require.Zero(t, first.end())
	first.nothingLeft()
	for line := range strings.SplitSeq(first.text(), "\n") {
		require.NotContains(t, line, "WARN", "a clean stop is quiet")
		require.NotContains(t, line, "ERROR")
	}

	second := startUp(t, dir, nil)
	require.Equal(t, key, second.await("key"))
	second.await("ready in")
	popped, err := program(t.Context(), nil, "pop", "hello", "--data", dir, "--addr", fmt.Sprintf("127.0.0.1:%d", second.port+1), "-w", "10s").CombinedOutput()
	require.NoError(t, err, "%s", popped)
	require.Contains(t, string(popped), `{"n":1}`, "what was pushed before the restart is there")

	other := startUp(t, dir, nil)
	require.Equal(t, 1, other.end())
	require.Contains(t, other.text(), "running there already")
	busy := startUp(t, upFolder(t), nil, "--port", strconv.Itoa(second.port))
	require.Equal(t, 1, busy.end())
	require.Contains(t, busy.text(), fmt.Sprintf("port %d is taken", second.port))
	require.NotContains(t, busy.text(), "database", "nothing slow was begun")

	second.signal(syscall.SIGTERM)
	require.Zero(t, second.end())
	second.nothingLeft()
}

func TestTwoHostsAreTwoProcessesAndOneSurvivesTheOther(t *testing.T) {
	t.Parallel()
	dir := upFolder(t)
	r := startUp(t, dir, nil, "--hosts", "2")
	key := r.await("key")
	r.await("ready in")
	pid, err := os.ReadFile(filepath.Join(dir, "host-1.pid"))
	require.NoError(t, err)
	var victim int
	_, err = fmt.Sscan(string(pid), &victim)
	require.NoError(t, err)
	require.NotEqual(t, r.cmd.Process.Pid, victim)
	require.Eventually(t, func() bool { return strings.Contains(r.must(key, "admin", "mesh"), "1 alive, 0 dead") }, upPatience, 100*time.Millisecond,
		"the hosts are joined by the mesh")

	require.NoError(t, syscall.Kill(victim, syscall.SIGKILL))

	r.await("host 1 ended")
	require.False(t, ready(t, r.port))
	require.True(t, ready(t, r.port+10))
	out, err := program(t.Context(), nil, "push", "orders", "x", "--key", key,
		"--addr", fmt.Sprintf("127.0.0.1:%d,127.0.0.1:%d", r.port+1, r.port+11)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	r.signal(os.Interrupt)
	require.Zero(t, r.end())
	r.nothingLeft()
}

func TestASecondSignalEndsItAtOnceAndLeavesNoOrphans(t *testing.T) {
	t.Parallel()
	r := startUp(t, upFolder(t), nil, "--hosts", "2")
	key := r.await("key")
	r.await("ready in")
	parked := program(context.WithoutCancel(t.Context()), nil, "pop", "empty", "--wait", "60s", "--key", key, "--addr", fmt.Sprintf("127.0.0.1:%d", r.port+1))
	require.NoError(t, parked.Start())
	defer func() {
		_ = parked.Process.Kill()
		_ = parked.Wait()
	}()

	r.signal(os.Interrupt)
	r.signal(os.Interrupt)

	require.Contains(t, []int{0, 130}, r.end(), "130, unless it had drained before the second signal came")
	r.nothingLeft()
}

func TestAParentKilledLeavesNoOrphans(t *testing.T) {
	t.Parallel()
	r := startUp(t, upFolder(t), nil, "--hosts", "2")
	r.await("ready in")

	r.signal(syscall.SIGKILL)

	r.end()
	r.nothingLeft()
}
