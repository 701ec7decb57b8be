package pgtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
)

// stopTimeout bounds the server's clean stop at the end of the run.
const stopTimeout = 10 * time.Second

// shared is the test process's one server. It is package state because the process is what it belongs to.
//
//nolint:gochecknoglobals // one server per process is the point
var shared host

// host starts the shared server once and knows its templates.
type host struct {
	mu        sync.Mutex // guards all below, and is held while the server starts
	inMain    bool
	dir       string
	lock      *os.File
	server    *localpg.Server
	url       string // of the maintenance database
	err       error
	templates map[string]*template
}

// Main runs a package's tests and exits: with the tests' code, or with 1 when the server did not stop cleanly or goroutines are left. Call it from TestMain.
// It adds the flag -update, for GoldenSchema. Options are for goroutines of others' code.
func Main(m *testing.M, ignore ...goleak.Option) {
	if flag.Lookup("update") == nil {
		flag.Bool("update", false, "rewrite golden files")
	}
	shared.enter()
	code := m.Run()
	err := shared.stop()
	if err == nil && code == 0 {
		err = goleak.Find(ignore...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err) // nowhere to report to
		code = max(code, 1)
	}
	os.Exit(code) //nolint:forbidigo // TestMain ends the process
}

func (h *host) enter() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inMain = true
}

// start returns the maintenance database's URL. A failure is remembered, so that every test reports it at once.
func (h *host) start(ctx context.Context) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.url == "" && h.err == nil {
		h.url, h.err = h.startLocked(ctx)
	}
	return h.url, h.err
}

func (h *host) startLocked(ctx context.Context) (string, error) {
	h.templates = make(map[string]*template)
	if given := os.Getenv("PGTEST_URL"); given != "" {
		if u, err := url.Parse(given); err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
			return "", errors.New("PGTEST_URL must be a postgres:// URL")
		}
		return given, nil
	}
	if !h.inMain {
		return "", errors.New("this package needs: func TestMain(m *testing.M) { pgtest.Main(m) }")
	}
	sweep()
	dir, lock, err := tempDir()
	if err != nil {
		return "", err
	}
	h.dir, h.lock = dir, lock
	server, err := localpg.Start(ctx, clock.Real{}, localpg.Options{Dir: filepath.Join(dir, "pg"), MaxConnections: 200})
	if err != nil {
		return "", err
	}
	h.server = server
	return server.DSN("postgres"), nil
}

func (h *host) stop() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var err error
	if h.server != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		err = h.server.Stop(ctx)
		h.server = nil
	}
	if h.dir != "" {
		err = errors.Join(err, os.RemoveAll(h.dir), h.lock.Close())
	}
	return err
}

// tempDir makes a folder for a server, in /tmp because the server's user cannot pass through every $TMPDIR, and locks it while this process lives.
func tempDir() (string, *os.File, error) {
	dir, err := os.MkdirTemp("/tmp", "pgtest-")
	if err != nil {
		return "", nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the server's user passes through; its data is private
		return "", nil, err
	}
	lock, err := os.Create(filepath.Join(dir, "lock")) //nolint:gosec // the path is ours
	if err != nil {
		return "", nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil { // a descriptor fits
		return "", nil, errors.Join(err, lock.Close())
	}
	return dir, lock, nil
}

// sweep removes the folders of test processes that were killed: nobody holds their lock any more.
func sweep() {
	dirs, err := filepath.Glob("/tmp/pgtest-*")
	if err != nil {
		return
	}
	for _, dir := range dirs {
		lock, err := os.Open(filepath.Join(dir, "lock")) //nolint:gosec // the path is ours
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil { // a descriptor fits
			_ = os.RemoveAll(dir) // the next run tries again
		}
		_ = lock.Close() // opened for reading
	}
}

// explain adds what to do to an error of the start.
func explain(err error) string {
	if _, ok := errors.AsType[*localpg.MissingError](err); ok {
		return "PostgreSQL is needed: " + localpg.AptLine + "\n" + err.Error()
	}
	return strings.TrimSpace(err.Error())
}
