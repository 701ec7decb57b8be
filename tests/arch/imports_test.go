package arch_test

import (
	"slices"
	"strings"
	"testing"
)

// below lists, for each part of the house, the parts it may import besides itself.
func below(part string) []string {
	switch top, rest, _ := strings.Cut(part, "/"); top {
	case "proto", "pkg":
		return nil
	case "sdk":
		return []string{"proto"}
	case "services":
		return []string{"proto", "pkg"}
	case "stack":
		return []string{"proto", "pkg", "services", "sdk"}
	case "tests":
		return []string{"proto", "pkg", "services", "sdk", "stack"}
	default:
		panic("a part of the house without a rule: " + top + "/" + rest)
	}
}

// room is the part that is closed to its neighbours: a top folder, or one service.
func room(part string) string {
	elements := strings.SplitN(part, "/", 3)
	if elements[0] == "services" && len(elements) > 1 {
		return "services/" + elements[1]
	}
	return elements[0]
}

func TestImportsFollowTheHouse(t *testing.T) {
	t.Parallel()
	var findings []string

	for _, p := range housePackages(t) {
		allowed := below(p.part())
		for _, path := range p.allImports() {
			target, ours := strings.CutPrefix(path, module)
			if !ours || room(target) == room(p.part()) {
				continue
			}
			top, _, _ := strings.Cut(target, "/")
			if !slices.Contains(allowed, top) {
				findings = append(findings, p.part()+" imports "+target)
			}
		}
	}

	report(t, "proto, pkg <- services/* <- stack <- tests, and no service imports another", findings)
}

func TestTestHarnessesAreImportedByTestsOnly(t *testing.T) {
	t.Parallel()
	var findings []string

	for _, p := range housePackages(t) {
		for _, path := range p.Imports {
			isHarness := path == module+"pkg/pgtest" || path == module+"pkg/redistest"
			if isHarness && room(p.part()) != "tests" && !strings.HasSuffix(p.ImportPath, "test") {
				findings = append(findings, p.part()+" imports "+path)
			}
		}
	}

	report(t, "no binary carries a test harness", findings)
}

// impure are the standard packages that reach outside the process, by prefix.
func impure() []string {
	return []string{"net", "os", "io/fs", "io/ioutil", "database", "syscall", "log", "context", "expvar", "runtime/", "testing"}
}

// domainMayImport says whether a decision-making package may use path.
func domainMayImport(path string) bool {
	if target, ours := strings.CutPrefix(path, module); ours {
		return slices.Contains([]string{"pkg/hlc", "pkg/fence", "pkg/tenant"}, target) || isDomain(target)
	}
	if first, _, _ := strings.Cut(path, "/"); strings.Contains(first, ".") {
		libraries := []string{"github.com/cespare/xxhash/v2", "github.com/dchest/siphash", "github.com/klauspost/compress/", "github.com/RoaringBitmap/roaring/v2", "github.com/google/uuid"}
		return slices.ContainsFunc(libraries, func(library string) bool { return strings.HasPrefix(path, library) })
	}
	if path == "net/netip" || path == "net/url" {
		return true // values, no input or output
	}
	return !slices.ContainsFunc(impure(), func(prefix string) bool {
		return path == prefix || strings.HasPrefix(path, strings.TrimSuffix(prefix, "/")+"/")
	})
}

func isDomain(part string) bool {
	return strings.HasPrefix(part, "services/") && strings.Contains(part+"/", "/internal/domain/")
}

func TestDomainIsPure(t *testing.T) {
	t.Parallel()
	var findings []string

	for _, p := range housePackages(t) {
		if !isDomain(p.part()) || strings.HasSuffix(p.part(), "test") { // windowtest is a test harness
			continue
		}
		for _, path := range p.Imports {
			if !domainMayImport(path) {
				findings = append(findings, p.part()+" imports "+path)
			}
		}
	}

	report(t, "internal/domain imports the pure standard library, pkg/{hlc,fence,tenant}, hashing and compression", findings)
}

// mayUsePgx says which packages speak to the Postgres driver themselves.
func mayUsePgx(part string) bool {
	if room(part) == "tests" || strings.HasPrefix(part, "services/") && strings.Contains(part+"/", "/internal/store/") {
		return true
	}
	drivers := []string{"pkg/pg", "pkg/pgtest", "pkg/localpg", "pkg/leader", "pkg/migrate"}
	return slices.ContainsFunc(drivers, func(driver string) bool { return part == driver || strings.HasPrefix(part, driver+"/") })
}

func TestSQLStaysInStores(t *testing.T) {
	t.Parallel()
	var findings []string

	for _, p := range housePackages(t) {
		if mayUsePgx(p.part()) {
			continue
		}
		for _, path := range p.Imports {
			if strings.HasPrefix(path, "github.com/jackc/pgx") {
				findings = append(findings, p.part()+" imports "+path)
			}
		}
	}

	report(t, "pgx is imported by internal/store and pkg/{pg,pgtest,localpg,leader,migrate} only", findings)
}
