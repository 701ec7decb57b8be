package pgtest

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/migrate"
)

// GoldenSchema compares the schema that the migrations make with the dump in file (migrations/schema.sql), which is the readable form of what they add up
// to. With -update it rewrites the file.
func GoldenSchema(t testing.TB, file string, set migrate.Set) {
	t.Helper()
	bin, err := localpg.Find(t.Context())
	if err != nil {
		t.Fatal(explain(err))
	}
	got, err := migrate.Dump(t.Context(), bin.Path("pg_dump"), NewDatabase(t, Roles{}, set).URL(), set.Schema)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	if f := flag.Lookup("update"); f != nil && f.Value.String() == "true" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil { //nolint:gosec // a source file
			t.Fatalf("pgtest: %v", err)
		}
		return
	}
	want, err := os.ReadFile(file) //nolint:gosec // the test's own file
	if err != nil {
		t.Fatalf("pgtest: %v (run the test with -update to write it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs from what the migrations make (-file +database); -update rewrites it:\n%s", file, diff)
	}
}
