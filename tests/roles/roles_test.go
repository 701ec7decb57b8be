// Package roles checks what the database itself refuses when each service has a role of its own (deploy/postgres/roles.sql).
package roles

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/stack"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// database has every service's schema, migrated by its own role.
func database(t *testing.T) *pgtest.Database {
	t.Helper()
	sql, err := os.ReadFile("../../deploy/postgres/roles.sql")
	require.NoError(t, err)
	return pgtest.NewDatabase(t, pgtest.Roles{SQL: string(sql), Prefix: "postrider_"}, stack.Migrations()...)
}

// forbidden is the SQLSTATE of a missing right.
const forbidden = "42501"

func names(t *testing.T, db *pg.DB, sql string, args ...any) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), sql, args...)
	require.NoError(t, err)
	defer rows.Close()
	var all []string
	for rows.Next() {
		var name string
		require.NoError(t, rows.Scan(&name))
		all = append(all, name)
	}
	require.NoError(t, rows.Err())
	return all
}

func TestNoServiceReadsOrWritesAnothersTables(t *testing.T) {
	t.Parallel()
	d := database(t)
	admin := d.Open(pg.Options{})
	for _, own := range stack.Migrations() {
		db := d.OpenAs(own.Schema, pg.Options{MaxConns: 1})
		for _, other := range stack.Migrations() {
			tables := names(t, admin, "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = $1", other.Schema)
			require.NotEmpty(t, tables, other.Schema)
			for _, table := range tables {
				for _, sql := range []string{"SELECT FROM " + table + " LIMIT 0", "DELETE FROM " + table + " WHERE false", "TRUNCATE " + table} {
					err := db.InTx(t.Context(), pg.ReadCommitted, func(tx pg.Tx) error {
						if _, err := tx.Exec(t.Context(), sql); err != nil {
							return err
						}
						return tx.Rollback(t.Context())
					})
					if own.Schema == other.Schema {
						require.NotEqual(t, forbidden, pg.Code(err), "%s as %s", sql, own.Schema)
					} else {
						require.Equal(t, forbidden, pg.Code(err), "%s as %s: %v", sql, own.Schema, err)
					}
				}
			}
		}
	}
}

func TestOnlyExportedFunctionsMayBeCalled(t *testing.T) {
	t.Parallel()
	d := database(t)
	callable := names(t, d.Open(pg.Options{}), `
		SELECT r.rolname || ' ' || p.oid::regproc
		FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
		JOIN pg_roles r ON r.rolname LIKE 'postrider\_%' AND r.rolname <> 'postrider_' || n.nspname
		WHERE n.nspname = ANY ($1) AND has_schema_privilege(r.oid, n.oid, 'USAGE') AND has_function_privilege(r.oid, p.oid, 'EXECUTE')`,
		[]string{"ingress", "dispatcher", "scheduler", "audit", "mesh"})

	var want []string
	for _, role := range []string{"ingress", "dispatcher", "scheduler", "audit", "mesh"} {
		if role != "audit" {
			want = append(want, "postrider_"+role+" audit.enqueue")
		}
		if role != "mesh" {
			for _, function := range []string{"announce", "directory", "modes", "set_mode"} {
				want = append(want, "postrider_"+role+" mesh."+function)
			}
		}
	}
	require.ElementsMatch(t, want, callable)
}

func TestExportedFunctionsWorkForEveryRole(t *testing.T) {
	t.Parallel()
	d := database(t)
	for _, set := range stack.Migrations() {
		db := d.OpenAs(set.Schema, pg.Options{MaxConns: 1})
		for _, sql := range []string{
			"SELECT audit.enqueue('default', 'key:1', 'queue.create', 'queues/a', '{}')",
			"SELECT * FROM mesh.directory()",
			"SELECT mesh.announce('[]')",
			"SELECT * FROM mesh.modes()",
			"SELECT * FROM mesh.set_mode('pop_maintenance', true, '', 'key:1')",
		} {
			_, err := db.Exec(t.Context(), sql)
			require.NoError(t, err, "%s as %s", sql, set.Schema)
		}
	}
}
