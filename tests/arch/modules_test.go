package arch_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"
)

// siblings maps each module of the workspace to our other modules that its packages reach, however deep.
func siblings(packages []goPackage) map[string][]string {
	byPath := map[string]goPackage{}
	for _, p := range packages {
		byPath[p.ImportPath] = p
	}
	reached := map[string][]string{}
	for _, p := range packages {
		home := p.Module.Path
		seen := map[string]bool{}
		queue := p.allImports()
		for len(queue) > 0 {
			path := queue[0]
			queue = queue[1:]
			target, ours := byPath[path]
			if !ours || seen[path] {
				continue
			}
			seen[path] = true
			if target.Module.Path != home && !slices.Contains(reached[home], target.Module.Path) {
				reached[home] = append(reached[home], target.Module.Path)
			}
			queue = append(queue, target.Imports...) // the tests of a dependency are not built
		}
	}
	return reached
}

// go mod tidy, GOWORK=off and users of a module ignore go.work, so each go.mod has to stand alone.
func TestModulesStandWithoutTheWorkspace(t *testing.T) {
	t.Parallel()
	packages := housePackages(t)
	reached := siblings(packages)
	dirs := map[string]string{}
	for _, p := range packages {
		dirs[p.Module.Path] = p.Module.Dir
	}
	var findings []string

	for path, dir := range dirs {
		raw, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		require.NoError(t, err)
		file, err := modfile.Parse(dir, raw, nil)
		require.NoError(t, err)
		for _, sibling := range reached[path] {
			if !requires(file, sibling) {
				findings = append(findings, path+" reaches "+sibling+" but does not require it at v0.0.0")
			}
			if !replaces(file, sibling, dir, dirs[sibling]) {
				findings = append(findings, path+" reaches "+sibling+" but does not replace it by its folder")
			}
		}
	}

	report(t, "go.mod requires and replaces every sibling it reaches", findings)
}

func requires(file *modfile.File, sibling string) bool {
	return slices.ContainsFunc(file.Require, func(r *modfile.Require) bool {
		return r.Mod.Path == sibling && r.Mod.Version == "v0.0.0"
	})
}

func replaces(file *modfile.File, sibling, dir, want string) bool {
	return slices.ContainsFunc(file.Replace, func(r *modfile.Replace) bool {
		return r.Old.Path == sibling && strings.HasPrefix(r.New.Path, ".") && filepath.Join(dir, r.New.Path) == want
	})
}
