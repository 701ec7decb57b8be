package migrations_test

import (
	"testing"

	"postrider.dev/pkg/pgtest"
	"postrider.dev/services/scheduler/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestSchemaIsWhatTheGoldenSays(t *testing.T) {
	t.Parallel()
	pgtest.GoldenSchema(t, "schema.sql", migrations.Set())
}
