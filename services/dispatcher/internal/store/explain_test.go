package store_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/services/dispatcher/internal/store"
)

// plan is a node of EXPLAIN's JSON.
//
//nolint:tagliatelle // the names are PostgreSQL's
type plan struct {
	Node       string `json:"Node Type"`
	Schema     string `json:"Schema"`
	Relation   string `json:"Relation Name"`
	Index      string `json:"Index Name"`
	IndexCond  string `json:"Index Cond"`
	Filter     string `json:"Filter"`
	JoinFilter string `json:"Join Filter"`
	Plans      []plan `json:"Plans"`
}

// innocent says that a condition is about one row that was found by its whole key, or that no index could answer it.
func innocent(condition string) bool {
	return slices.ContainsFunc([]string{".sealed)", "(POSITION", "s.flush_id)", "<> ALL ("}, func(part string) bool {
		return strings.Contains(condition, part)
	})
}

// TestHotStatementsUseWholeKeys plans every hot statement on an empty, vacuumed database, where nothing tells the planner that a table will be large: each
// table must be reached by all columns of a key, with nothing left to filter.
func TestHotStatementsUseWholeKeys(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec("VACUUM ANALYZE")
	columns := indexColumns(b)

	for name, sql := range store.Statements() {
		for _, root := range explain(b, sql) {
			check(t, name, columns, root)
		}
	}
}

func indexColumns(b *bench) map[string][]string {
	rows, err := b.db.Query(b.t.Context(), `SELECT c.relname, array_agg(a.attname::text ORDER BY a.attnum)
		FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_attribute a ON a.attrelid = c.oid WHERE n.nspname = 'dispatcher' GROUP BY 1`)
	require.NoError(b.t, err)
	columns := make(map[string][]string)
	for rows.Next() {
		var index string
		var names []string
		require.NoError(b.t, rows.Scan(&index, &names))
		columns[index] = names
	}
	require.NoError(b.t, rows.Err())
	return columns
}

func explain(b *bench, sql string) []plan {
	b.t.Helper()
	conn, err := b.db.Acquire(b.t.Context())
	require.NoError(b.t, err)
	defer conn.Release()
	params := 0
	for _, match := range regexp.MustCompile(`\$(\d+)`).FindAllStringSubmatch(sql, -1) {
		var n int
		_, err := fmt.Sscan(match[1], &n)
		require.NoError(b.t, err)
		params = max(params, n)
	}
	values := ""
	if params > 0 {
		values = "(" + strings.TrimSuffix(strings.Repeat("NULL,", params), ",") + ")"
	}
	for _, stmt := range []string{"DEALLOCATE ALL", "PREPARE hot AS " + sql} {
		_, err := conn.Conn().PgConn().Exec(b.t.Context(), stmt).ReadAll()
		require.NoError(b.t, err, sql)
	}
	results, err := conn.Conn().PgConn().Exec(b.t.Context(), "EXPLAIN (VERBOSE, FORMAT JSON) EXECUTE hot"+values).ReadAll()
	require.NoError(b.t, err, sql)
	_, err = conn.Conn().PgConn().Exec(b.t.Context(), "DEALLOCATE ALL").ReadAll()
	require.NoError(b.t, err)
	conn.Conn().DeallocateAll(b.t.Context()) //nolint:errcheck // forgets what was deallocated
	var roots []struct{ Plan plan }
	require.NoError(b.t, json.Unmarshal(results[0].Rows[0][0], &roots))
	plans := make([]plan, len(roots))
	for i := range roots {
		plans[i] = roots[i].Plan
	}
	return plans
}

func check(t *testing.T, name string, columns map[string][]string, p plan) {
	t.Helper()
	ours := p.Schema == "dispatcher" && p.Relation != "" && p.Node != "ModifyTable"
	if ours && p.Index == "" && p.Node != "Bitmap Heap Scan" && p.Node != "Tid Scan" {
		t.Errorf("%s: %s on %s", name, p.Node, p.Relation)
	}
	if p.Index != "" {
		for _, column := range columns[p.Index] {
			if column == "seq" { // it is there for the order of rows, and nothing asks for one of them
				continue
			}
			if !regexp.MustCompile(`\b` + column + `\b`).MatchString(p.IndexCond) {
				t.Errorf("%s: index %s is used without its column %s: %q", name, p.Index, column, p.IndexCond)
			}
		}
	}
	if ours && p.Filter != "" && !innocent(p.Filter) {
		t.Errorf("%s: %s is filtered: %s", name, p.Relation, p.Filter)
	}
	if p.JoinFilter != "" {
		t.Errorf("%s: %s with filter %s", name, p.Node, p.JoinFilter)
	}
	for _, child := range p.Plans {
		check(t, name, columns, child)
	}
}
