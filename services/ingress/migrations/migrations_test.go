package migrations_test

import (
	"testing"

	"postrider.dev/pkg/pgtest"
	"postrider.dev/services/ingress/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestSchemaIsWhatTheGoldenSays(t *testing.T) {
	t.Parallel()
	pgtest.GoldenSchema(t, "schema.sql", migrations.Set())
}
