// Package migrations holds the schema of the meshhint service, forward only.
package migrations

import "embed"

// Schema is the Postgres schema that the service owns.
const Schema = "mesh"

// FS holds the migrations in goose's format.
//
//go:embed 0*.sql
var FS embed.FS
