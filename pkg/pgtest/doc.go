// Package pgtest gives each test a private database on a real PostgreSQL.
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		t.Parallel()
//		db := pgtest.New(t, migrations.Set())
//		...
//	}
//
// One server runs per test process, started at first use and stopped by Main, which also fails the run when goroutines are left over. The migrations
// run once, into a template; each New clones it (some 10-30 ms) and drops the clone at the test's end. A database of its own, not a schema or a rollback, because
// advisory locks and NOTIFY are per database, and a rollback hides the order of commits.
//
// Without PostgreSQL programs the test fails; it is never skipped. $PGTEST_URL names another server to use (a superuser's URL).
package pgtest
