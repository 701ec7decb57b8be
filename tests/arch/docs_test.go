package arch_test

import (
	"fmt"
	"go/ast"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// notYet is what the last cell of a row says while no test guards it.
const notYet = "not yet"

// guard names a test as documents do: `services/dispatcher/internal/domain#TestName`.
var guard = regexp.MustCompile("`([a-z0-9/_.-]+)#((?:Test|Fuzz)[A-Za-z0-9_]+)`")

// testsIn lists the test functions of a folder.
func testsIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	require.NoError(t, err)
	for _, path := range files {
		name, err := filepath.Rel(root, path)
		require.NoError(t, err)
		_, file := parse(t, name)
		for _, declaration := range file.Decls {
			if function, ok := declaration.(*ast.FuncDecl); ok && function.Recv == nil {
				names[function.Name.Name] = true
			}
		}
	}
	return names
}

// missingGuards checks the last cell of every table row of a document: it names tests that exist, or says `not yet`.
func missingGuards(t *testing.T, document, header string) []string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, document))
	require.NoError(t, err)
	var findings []string
	guarded := false // inside a table with such a column
	for i, line := range strings.Split(string(content), "\n") {
		if !strings.HasPrefix(line, "|") {
			guarded = false
			continue
		}
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		last := strings.TrimSpace(cells[len(cells)-1])
		if last == header {
			guarded = true
			continue
		}
		if !guarded || strings.Trim(last, "-: ") == "" || last == notYet {
			continue
		}
		matches := guard.FindAllStringSubmatch(last, -1)
		if len(matches) == 0 {
			findings = append(findings, fmt.Sprintf("%s:%d names no test and does not say %q", document, i+1, notYet))
		}
		for _, match := range matches {
			if !testsIn(t, match[1])[match[2]] {
				findings = append(findings, fmt.Sprintf("%s:%d: %s has no %s", document, i+1, match[1], match[2]))
			}
		}
	}
	return findings
}

func TestPromisesNameTheirTests(t *testing.T) {
	t.Parallel()

	findings := missingGuards(t, "docs/promises.md", "test")
	findings = append(findings, missingGuards(t, "ARCHITECTURE.md", "test")...)

	report(t, "a promise names the test that guards it", findings)
}

// A test that is not there would not be missed by `go test -run`.
func TestVolumesNameTheirTests(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(filepath.Join(root, "scripts/volume"))
	require.NoError(t, err)
	var findings []string
	named := regexp.MustCompile(`(?m)^\t([a-z0-9/_.-]+)#(Test\w+)$`).FindAllStringSubmatch(string(content), -1)
	for _, match := range named {
		if !testsIn(t, match[1])[match[2]] {
			findings = append(findings, fmt.Sprintf("scripts/volume: %s has no %s", match[1], match[2]))
		}
	}

	require.NotEmpty(t, named)
	report(t, "a volume names the test that does it", findings)
}

func TestMutantsNameTheirTests(t *testing.T) {
	t.Parallel()
	var findings []string
	patches, err := filepath.Glob(filepath.Join(root, "tests/mutants/*.patch"))
	require.NoError(t, err)

	for _, path := range patches {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		fields := map[string]string{}
		for _, match := range regexp.MustCompile(`(?m)^# (package|test|breaks): (.+)$`).FindAllStringSubmatch(string(content), -1) {
			fields[match[1]] = strings.TrimSpace(match[2])
		}
		switch {
		case fields["package"] == "" || fields["test"] == "" || fields["breaks"] == "":
			findings = append(findings, path+" lacks a line `# package:`, `# test:` or `# breaks:`")
		case !testsIn(t, fields["package"])[fields["test"]]:
			findings = append(findings, path+": "+fields["package"]+" has no "+fields["test"])
		}
		apply := exec.CommandContext(t.Context(), "git", "apply", "--check", strings.TrimPrefix(path, root+"/"))
		apply.Dir = root
		if out, err := apply.CombinedOutput(); err != nil {
			findings = append(findings, fmt.Sprintf("%s does not apply: %s", path, out))
		}
	}

	report(t, "a mutant applies and names the test that must go red", findings)
}

func TestDecisionsAreComplete(t *testing.T) {
	t.Parallel()
	var findings []string
	records, err := filepath.Glob(filepath.Join(root, "docs/adr/[0-9]*.md"))
	require.NoError(t, err)
	require.NotEmpty(t, records)

	for _, path := range records {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, heading := range []string{"## Context", "## Decision", "## What it costs", "## What would change our mind"} {
			if !strings.Contains(string(content), heading+"\n") {
				findings = append(findings, filepath.Base(path)+" has no "+heading)
			}
		}
	}

	report(t, "a decision record has four parts", findings)
}
