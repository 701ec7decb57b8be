package localpg

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// MinMajor is the oldest PostgreSQL that is accepted.
const MinMajor = 15

// Binaries is a folder with one version's programs.
type Binaries struct {
	Dir   string
	Major int
}

// Path returns the path of one program.
func (b Binaries) Path(program string) string { return filepath.Join(b.Dir, program) }

// Find looks for PostgreSQL programs, in this order: $PGBIN (nothing else when it is set), PATH, then the newest of the folders where Debian,
// Homebrew and Postgres.app put them. It returns *MissingError when there are none.
func Find(ctx context.Context) (Binaries, error) {
	missing := &MissingError{}
	if dir := os.Getenv("PGBIN"); dir != "" {
		return pick(ctx, missing, []string{dir})
	}
	if path, err := exec.LookPath("postgres"); err == nil {
		if target, err := filepath.EvalSymlinks(path); err == nil {
			if b, err := pick(ctx, missing, []string{filepath.Dir(target)}); err == nil {
				return b, nil
			}
		}
	}
	return pick(ctx, missing, candidates())
}

// candidates lists the usual folders.
func candidates() []string {
	var dirs []string
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin",
		"/opt/homebrew/opt/postgresql/bin",
		"/usr/local/opt/postgresql/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
		"/usr/local/pgsql/bin",
	} {
		found, err := filepath.Glob(pattern)
		if err == nil && len(found) > 0 {
			dirs = append(dirs, found...)
		} else {
			dirs = append(dirs, pattern)
		}
	}
	return dirs
}

// pick returns the newest complete set of programs among dirs.
func pick(ctx context.Context, missing *MissingError, dirs []string) (Binaries, error) {
	missing.Searched = append(missing.Searched, dirs...)
	var best []Binaries
	for _, dir := range dirs {
		b, err := Inspect(ctx, dir)
		switch {
		case err != nil:
			continue
		case b.Major < MinMajor:
			missing.TooOld = append(missing.TooOld, dir)
		default:
			best = append(best, b)
		}
	}
	if len(best) == 0 {
		return Binaries{}, missing
	}
	return slices.MaxFunc(best, func(a, b Binaries) int { return a.Major - b.Major }), nil
}

// Inspect checks that dir holds a server's programs and asks their version.
func Inspect(ctx context.Context, dir string) (Binaries, error) {
	for _, program := range []string{"postgres", "initdb"} {
		if _, err := os.Stat(filepath.Join(dir, program)); err != nil { //nolint:gosec // the folder is the operator's choice
			return Binaries{}, fmt.Errorf("look for %s: %w", program, err)
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(dir, "postgres"), "--version").Output() //nolint:gosec // the folder is the operator's choice
	if err != nil {
		return Binaries{}, fmt.Errorf("ask %s for its version: %w", dir, err)
	}
	major, err := parseMajor(string(out))
	if err != nil {
		return Binaries{}, err
	}
	return Binaries{Dir: dir, Major: major}, nil
}

// parseMajor reads "postgres (PostgreSQL) 15.18 (Debian 15.18-0)", "... 18beta1", and the single number of a PG_VERSION file.
func parseMajor(text string) (int, error) {
	for _, word := range strings.Fields(text) {
		end := strings.IndexFunc(word, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(word)
		}
		if end == 0 {
			continue
		}
		return strconv.Atoi(word[:end])
	}
	return 0, fmt.Errorf("no version in %q", text)
}
