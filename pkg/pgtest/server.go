package pgtest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
)

// NewServer returns a private server of the test's own, which it may kill, freeze and restart; it is stopped and removed at the test's end. It costs a
// second or so: tests that harm nobody use New. opts.Dir is chosen here.
func NewServer(t testing.TB, opts localpg.Options) *localpg.Server {
	t.Helper()
	dir, lock, err := tempDir()
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		_ = os.RemoveAll(dir) // sweep tries again
		_ = lock.Close()      // the folder is gone
	})
	opts.Dir = filepath.Join(dir, "pg")
	server, err := localpg.Start(t.Context(), clock.Real{}, opts)
	if err != nil {
		t.Fatal(explain(err))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), stopTimeout)
		defer cancel()
		if err := server.Stop(ctx); err != nil {
			t.Errorf("pgtest: stop server: %v", err)
		}
	})
	return server
}
