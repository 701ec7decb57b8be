// Package migrations holds the schema of the audit service: forward-only steps, embedded, and schema.sql, the golden dump of their result.
package migrations

import (
	"embed"

	"postrider.dev/pkg/migrate"
)

//go:embed 0*.sql
var files embed.FS

// Set is the steps and the schema they belong to.
func Set() migrate.Set { return migrate.Set{Schema: "audit", FS: files} }
