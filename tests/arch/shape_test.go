package arch_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	maxFileLines         = 400
	maxFunctionLines     = 60
	maxTestFunctionLines = 100
	maxMainLines         = 15
)

func TestFilesAndFunctionsFitOnAScreen(t *testing.T) {
	t.Parallel()
	var findings []string

	for _, name := range goFiles(t) {
		content, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err)
		if lines := bytes.Count(content, []byte("\n")); lines > maxFileLines {
			findings = append(findings, fmt.Sprintf("%s has %d lines, more than %d", name, lines, maxFileLines))
		}
		findings = append(findings, longFunctions(t, name)...)
	}

	report(t, "a file or function is too long to be read at once", findings)
}

func longFunctions(t *testing.T, name string) []string {
	t.Helper()
	var findings []string
	files, file := parse(t, name)
	for _, declaration := range file.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok {
			continue
		}
		limit := maxFunctionLines
		switch {
		case strings.HasSuffix(name, "_test.go"):
			limit = maxTestFunctionLines
		case file.Name.Name == "main" && function.Name.Name == "main":
			limit = maxMainLines
		}
		lines := files.Position(function.End()).Line - files.Position(function.Pos()).Line + 1
		if lines > limit {
			findings = append(findings, fmt.Sprintf("%s: %s has %d lines, more than %d", name, function.Name.Name, lines, limit))
		}
	}
	return findings
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	t.Parallel()
	var findings []string

	for _, p := range housePackages(t) {
		if p.Doc != "" || strings.HasPrefix(p.part(), "proto/gen") || hasTestDoc(t, p) {
			continue
		}
		findings = append(findings, p.part())
	}

	report(t, "a package has no package comment", findings)
}

// hasTestDoc looks for the package comment of a package that has nothing but tests; go list does not report that one.
func hasTestDoc(t *testing.T, p goPackage) bool {
	t.Helper()
	return slices.ContainsFunc(slices.Concat(p.TestGoFiles, p.XTestGoFiles), func(file string) bool {
		base, err := filepath.Abs(root)
		require.NoError(t, err)
		name, err := filepath.Rel(base, filepath.Join(p.Dir, file))
		require.NoError(t, err)
		_, parsed := parse(t, name)
		return parsed.Doc.Text() != ""
	})
}

func TestServicesAreBuiltAlike(t *testing.T) {
	t.Parallel()
	rooms := []string{"domain", "store", "server", "loop", "engine", "link"}
	extra := map[string]string{"dispatcher": "spool", "meshhint": "mesh"} // a log on disk, a transport of its own: see docs/adr
	var findings []string

	services, err := os.ReadDir(filepath.Join(root, "services"))
	require.NoError(t, err)
	for _, service := range services {
		name := service.Name()
		dir := filepath.Join(root, "services", name)
		for _, file := range []string{"go.mod", "doc.go", "config.go", name + ".go", "cmd/" + name + "/main.go", "migrations/migrations.go"} {
			if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
				findings = append(findings, "services/"+name+" has no "+file)
			}
		}
		internals, err := os.ReadDir(filepath.Join(dir, "internal"))
		if err != nil {
			continue // a service without insides has no such folder
		}
		for _, internal := range internals {
			if !slices.Contains(rooms, internal.Name()) && extra[name] != internal.Name() {
				findings = append(findings, "services/"+name+"/internal/"+internal.Name()+" is none of "+strings.Join(rooms, ", "))
			}
		}
	}

	report(t, "who has read one service has read all", findings)
}

func TestNoTestSleeps(t *testing.T) {
	t.Parallel()
	var findings []string

	for _, name := range goFiles(t) {
		if !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "tests/") {
			continue
		}
		files, file := parse(t, name)
		ast.Inspect(file, func(node ast.Node) bool {
			selector, ok := node.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if on, ok := selector.X.(*ast.Ident); ok && on.Name == "time" && selector.Sel.Name == "Sleep" {
				findings = append(findings, files.Position(selector.Pos()).String())
			}
			return true
		})
	}

	report(t, "tests wait for facts, not for time", findings)
}

// machineFolders are where somebody's home or work folder lies. They are put together here so that this file does not match
// itself.
func machineFolders() []string {
	return []string{"ro" + "ot", "wo" + "rk", "fa" + "rm", "ho" + "me", "Us" + "ers"}
}

// machinePath matches an absolute path below such a folder.
func machinePath() *regexp.Regexp {
	list := machineFolders()
	folders := strings.Join(append(list[:3:3], list[3]+"/[a-z]+", list[4]+"/[a-z]+"), "|")
	return regexp.MustCompile(`(^|[\s"'=:(` + "`" + `])/(` + folders + `)/[\w.]`)
}

func TestNoPathOfAMachineIsWrittenDown(t *testing.T) {
	t.Parallel()
	pattern := machinePath()
	var findings []string

	for _, name := range repositoryFiles(t) {
		if strings.Contains(name, "testdata/") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err)
		if bytes.IndexByte(content, 0) >= 0 {
			continue // not text
		}
		if !slices.ContainsFunc(machineFolders(), func(f string) bool { return bytes.Contains(content, []byte("/"+f+"/")) }) {
			continue // most files, and the expression is slow
		}
		for i, line := range bytes.Split(content, []byte("\n")) {
			if pattern.Match(line) {
				findings = append(findings, fmt.Sprintf("%s:%d: %s", name, i+1, bytes.TrimSpace(line)))
			}
		}
	}

	report(t, "a path that exists on one machine only", findings)
}
