package migrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// GoldenFile is the name of the dump beside the migrations; it is no migration.
const GoldenFile = "schema.sql"

// Dump returns the schema as SQL, the version table excepted, in a form that does not depend on the server's or the program's minor version.
// pgDump is the path of that program.
func Dump(ctx context.Context, pgDump, dsn, schema string) (string, error) {
	cmd := exec.CommandContext(ctx, pgDump, "--schema-only", "--no-owner", "--no-tablespaces", "--schema="+schema, // the program is the caller's choice
		"--exclude-table="+schema+".goose_db_version*", dsn)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return "", fmt.Errorf("dump schema %s: %w: %s", schema, err, bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return "", fmt.Errorf("dump schema %s: %w", schema, err)
	}
	return normalise(string(out)), nil
}

// normalise drops comments, session settings, psql's restrictions and repeated empty lines. Function bodies are left as they are, comments included.
func normalise(dump string) string {
	var b strings.Builder
	quoted, empty := false, true
	for line := range strings.Lines(dump) {
		line = strings.TrimRight(line, " \n")
		if !quoted {
			noise := strings.HasPrefix(line, "--") || strings.HasPrefix(line, "SET ") || strings.HasPrefix(line, `\`) ||
				strings.HasPrefix(line, "SELECT pg_catalog.set_config(")
			if noise || line == "" {
				if !empty {
					b.WriteString("\n")
				}
				empty = true
				continue
			}
		}
		if strings.Count(line, "$$")%2 == 1 || strings.Count(line, "$_$")%2 == 1 {
			quoted = !quoted
		}
		b.WriteString(line + "\n")
		empty = false
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}
