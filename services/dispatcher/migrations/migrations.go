// Package migrations holds the schema of the dispatcher: forward-only steps, embedded, and schema.sql, the golden dump of their result.
package migrations

import "embed"

// FS holds the steps, in goose's format.
//
//go:embed 0*.sql
var FS embed.FS
