package arch_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	root   = "../.."
	module = "postrider.dev/"
)

// goPackage is what `go list` says about a package.
type goPackage struct {
	ImportPath   string
	Dir          string
	Name         string
	Doc          string
	Standard     bool
	Imports      []string
	TestImports  []string
	XTestImports []string
	TestGoFiles  []string
	XTestGoFiles []string
	Module       *struct{ Path, Dir string }
}

// allImports returns the imports of the package and of its tests, each once.
func (p goPackage) allImports() []string {
	all := slices.Concat(p.Imports, p.TestImports, p.XTestImports)
	slices.Sort(all)
	return slices.Compact(all)
}

// part is the package's place in the house: its import path without the module prefix.
func (p goPackage) part() string { return strings.TrimPrefix(p.ImportPath, module) }

// housePackages lists every package of the workspace.
func housePackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Dir,Name,Doc,Standard,Imports,TestImports,XTestImports,TestGoFiles,XTestGoFiles,Module", "work")
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())

	var packages []goPackage
	decoder := json.NewDecoder(bytes.NewReader(out))
	for {
		var p goPackage
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		require.NoError(t, err)
		packages = append(packages, p)
	}
}

// repositoryFiles lists the files below the root that people write, as slash paths relative to it.
func repositoryFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if name == ".git" || name == ".postrider" || path == filepath.Join(root, "bin") || path == filepath.Join(root, "proto/gen") {
				return filepath.SkipDir
			}
			return nil
		}
		relative, err := filepath.Rel(root, path)
		files = append(files, filepath.ToSlash(relative))
		return err
	})
	require.NoError(t, err)
	return files
}

// goFiles lists the Go files that people write.
func goFiles(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(repositoryFiles(t), func(name string) bool {
		return filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_gen.go") || strings.Contains(name, "testdata/") ||
			filepath.Base(name) == "deps_tmp.go"
	})
}

// parsed is what parse has read, by name. A test that looks for a thousand tests by name would otherwise read their files a thousand times.
var parsed sync.Map //nolint:gochecknoglobals // the sources do not change while they are checked

// source is one Go file.
type source struct {
	files *token.FileSet
	file  *ast.File
}

// parse reads one Go file, named relative to the root, once. Nobody may change what it returns.
func parse(t *testing.T, name string) (*token.FileSet, *ast.File) {
	t.Helper()
	if known, ok := parsed.Load(name); ok {
		if known, ok := known.(source); ok {
			return known.files, known.file
		}
	}
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, filepath.Join(root, name), nil, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	parsed.Store(name, source{files, file})
	return files, file
}

// report fails the test once, with every finding on a line of its own.
func report(t *testing.T, rule string, findings []string) {
	t.Helper()
	if len(findings) > 0 {
		slices.Sort(findings)
		t.Error(fmt.Sprintf("%s; %d findings:\n  ", rule, len(findings)) + strings.Join(findings, "\n  "))
	}
}
