package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"
	"github.com/jedib0t/go-pretty/v6/table"
)

// shareRows is how many rows of each kind a table of shares has.
const shareRows = 15

// Profile runs each workload once, takes a CPU profile of the services meanwhile, writes it to dir and prints who had what share.
func Profile(ctx context.Context, p Plan, admin, dir string, procs Processes, workloads []Workload) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // profiles are no secret
		return fmt.Errorf("profile: %w", err)
	}
	for _, w := range workloads {
		if !p.asked(w.Name) || strings.HasPrefix(w.Name, "SQL ") { // bare SQL does nothing in the services
			continue
		}
		file := filepath.Join(dir, regexp.MustCompile(`[^a-zA-Z0-9]+`).ReplaceAllString(w.Name, "-")+".pprof")
		_, _ = fmt.Fprintf(p.Log, "profile of %s\n", w.Name)
		taken := make(chan error, 1)
		begin := func() { go func() { taken <- fetch(ctx, admin, p.Duration, file) }() }
		s, err := w.measure(ctx, p.Duration+time.Second, procs, begin)
		if err := errors.Join(err, <-taken); err != nil {
			return fmt.Errorf("profile of %s: %w", w.Name, err)
		}
		if err := printShares(p.Out, w.Name, file, s); err != nil {
			return err
		}
	}
	return nil
}

// fetch takes a profile of d from the admin listener of the services.
func fetch(ctx context.Context, admin string, d time.Duration, file string) error {
	url := fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", admin, max(1, int(d.Seconds())))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("fetch: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("fetch %s: status %d: %s", url, resp.StatusCode, body)
	}
	if err := os.WriteFile(file, body, 0o644); err != nil { //nolint:gosec // profiles are no secret
		return fmt.Errorf("fetch: %w", err)
	}
	return nil
}

// share is the part of all CPU time that was spent in something itself, and in it or what it called.
type share struct {
	name       string
	self, with float64
}

func printShares(out io.Writer, name, file string, s Sample) error {
	f, err := os.Open(file) //nolint:gosec // just written
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	prof, err := profile.Parse(f)
	if err != nil {
		return fmt.Errorf("profile %s: %w", file, err)
	}
	packages, functions := shares(prof)
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.SetTitle(fmt.Sprintf("%s: %.0f msg/s while profiled", name, s.Rate()))
	t.AppendHeader(table.Row{"package", "self %", "with callees %", "function", "self %", "with callees %"})
	for i := range shareRows {
		row := table.Row{"", "", "", "", "", ""}
		for j, list := range [][]share{packages, functions} {
			if i < len(list) {
				row[3*j], row[3*j+1], row[3*j+2] = list[i].name, fmt.Sprintf("%.1f", list[i].self), fmt.Sprintf("%.1f", list[i].with)
			}
		}
		t.AppendRow(row)
	}
	_, err = fmt.Fprintf(out, "%s\nallocation %.1f %%, garbage collection %.1f %%; profile: %s\n",
		t.Render(), withCallees(functions, "runtime.mallocgc"), withCallees(functions, "runtime.gcBgMarkWorker"), file)
	return err
}

// withCallees is the share of a function and what it calls.
func withCallees(functions []share, name string) float64 {
	if i := slices.IndexFunc(functions, func(s share) bool { return s.name == name }); i >= 0 {
		return functions[i].with
	}
	return 0
}

// shares sums up a profile by package and by function, the largest of their own first.
func shares(prof *profile.Profile) (packages, functions []share) {
	total := int64(0)
	byPackage, byFunction := map[string]*share{}, map[string]*share{}
	add := func(m map[string]*share, seen map[string]bool, name string, leaf bool, v int64) {
		s := m[name]
		if s == nil {
			s = &share{name: name}
			m[name] = s
		}
		if leaf {
			s.self += float64(v)
		}
		if !seen[name] { // recursion counts once
			s.with += float64(v)
			seen[name] = true
		}
	}
	for _, sample := range prof.Sample {
		v := sample.Value[len(sample.Value)-1] // nanoseconds
		total += v
		leaf := true
		seenPackages, seenFunctions := map[string]bool{}, map[string]bool{}
		for _, location := range sample.Location {
			for _, line := range location.Line {
				add(byPackage, seenPackages, packageOf(line.Function.Name), leaf, v)
				add(byFunction, seenFunctions, line.Function.Name, leaf, v)
				leaf = false
			}
		}
	}
	return sorted(byPackage, total), sorted(byFunction, total)
}

// packageOf returns the import path of a function's name, such as "a.b/c.(*T).F" or "a/b.F[...]".
func packageOf(function string) string {
	name, _, _ := strings.Cut(function, "[")
	slash := strings.LastIndexByte(name, '/')
	if dot := strings.IndexByte(name[slash+1:], '.'); dot >= 0 {
		return name[:slash+1+dot]
	}
	return name
}

func sorted(m map[string]*share, total int64) []share {
	list := make([]share, 0, len(m))
	for _, s := range m {
		list = append(list, share{name: s.name, self: 100 * s.self / float64(max(total, 1)), with: 100 * s.with / float64(max(total, 1))})
	}
	slices.SortFunc(list, func(a, b share) int { return cmp.Or(cmp.Compare(b.self, a.self), cmp.Compare(a.name, b.name)) })
	return list
}
