package migrate

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// schemaName and fileName are compiled per use: a package has no state of its own.
const (
	schemaName = `^[a-z][a-z0-9_]{0,62}$`
	fileName   = `^([0-9]{4})_[a-z0-9_]+\.sql$`
)

// UnreadableError says that a schema's version cannot be told, so nothing may be changed in it.
type UnreadableError struct {
	Schema string
	Reason string
	Err    error
}

func (e *UnreadableError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("version of schema %s: %s: %v", e.Schema, e.Reason, e.Err)
	}
	return fmt.Sprintf("version of schema %s: %s", e.Schema, e.Reason)
}

func (e *UnreadableError) Unwrap() error { return e.Err }

func (s Set) table() string { return s.Schema + ".goose_db_version" }

// Validate checks the schema's name, the files' names and numbers, and that none has a way down. It reports every problem.
func (s Set) Validate() error {
	var errs []error
	if !regexp.MustCompile(schemaName).MatchString(s.Schema) {
		errs = append(errs, fmt.Errorf("migrations: schema name %q", s.Schema))
	}
	files, err := s.files()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	if len(files) == 0 {
		errs = append(errs, fmt.Errorf("migrations of %s: no files", s.Schema))
	}
	pattern := regexp.MustCompile(fileName)
	for i, name := range files {
		match := pattern.FindStringSubmatch(path.Base(name))
		if match == nil {
			errs = append(errs, fmt.Errorf("migrations of %s: file name %s", s.Schema, name))
			continue
		}
		if n, err := strconv.Atoi(match[1]); err != nil || n != i+1 {
			errs = append(errs, fmt.Errorf("migrations of %s: %s stands at place %d", s.Schema, name, i+1))
		}
		errs = append(errs, s.forwardOnly(name))
	}
	return errors.Join(errs...)
}

// Newest is the number of the last file.
func (s Set) Newest() (int64, error) {
	files, err := s.files()
	return int64(len(files)), err
}

func (s Set) files() ([]string, error) {
	files, err := fs.Glob(s.FS, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("migrations of %s: %w", s.Schema, err)
	}
	files = slices.DeleteFunc(files, func(name string) bool { return name == GoldenFile })
	slices.Sort(files)
	return files, nil
}

func (s Set) forwardOnly(name string) error {
	text, err := fs.ReadFile(s.FS, name)
	if err != nil {
		return fmt.Errorf("migrations of %s: %w", s.Schema, err)
	}
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	for lines.Scan() {
		words := strings.Fields(strings.TrimLeft(lines.Text(), "- "))
		if len(words) >= 2 && words[0] == "+goose" && strings.EqualFold(words[1], "Down") {
			return fmt.Errorf("migrations of %s: %s has a way down, and we only go forward", s.Schema, name)
		}
	}
	return lines.Err()
}

const versionSQL = `SELECT coalesce(max(version_id) FILTER (WHERE is_applied), -1), count(*) FROM `

// version reads the schema's version. It tells "fresh" (no schema, or an empty one) from "unreadable".
func (s Set) version(ctx context.Context, conn *sql.Conn) (int64, error) {
	var exists bool
	var tables int
	err := conn.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'goose_db_version'),
		(SELECT count(*) FROM pg_tables WHERE schemaname = $1)`, s.Schema).Scan(&exists, &tables)
	switch {
	case err != nil:
		return 0, &UnreadableError{Schema: s.Schema, Reason: "look for its version table", Err: err}
	case !exists && tables == 0:
		return 0, nil
	case !exists:
		return 0, &UnreadableError{Schema: s.Schema, Reason: fmt.Sprintf("it has %d tables but no version table", tables)}
	}
	var version, rows int64
	switch err := conn.QueryRowContext(ctx, versionSQL+s.table()).Scan(&version, &rows); {
	case err != nil:
		return 0, &UnreadableError{Schema: s.Schema, Reason: "read its version table", Err: err}
	case rows == 0 || version < 0:
		return 0, &UnreadableError{Schema: s.Schema, Reason: "its version table has no version"}
	}
	return version, nil
}
