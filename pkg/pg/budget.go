package pg

import (
	"context"
	"fmt"
)

// BudgetError says that the server cannot give the connections this process may come to need.
type BudgetError struct {
	Need      int // what this process may open
	Used      int // what others have open now
	Available int // what the server gives to ordinary roles
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("connection budget: need %d and others use %d, but the server gives %d: raise max_connections or lower the pool size",
		e.Need, e.Used, e.Available)
}

// The total comes from pg_stat_database, because pg_stat_activity shows an ordinary role little more than its own sessions.
const budgetSQL = `
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int AS available,
       (SELECT coalesce(sum(numbackends), 0) FROM pg_stat_database)::int -
       (SELECT count(*) FROM pg_stat_activity WHERE application_name = current_setting('application_name'))::int AS used`

// CheckBudget refuses, with *BudgetError, when the pool at its full size and extra direct connections would not fit beside what others
// have open now. Sessions of the same AppName are taken for our own predecessors.
func (db *DB) CheckBudget(ctx context.Context, extra int) error {
	e := &BudgetError{Need: db.opts.MaxConns + extra}
	if err := db.QueryRow(ctx, budgetSQL).Scan(&e.Available, &e.Used); err != nil {
		return fmt.Errorf("read connection budget: %w", err)
	}
	if e.Need+e.Used > e.Available {
		return e
	}
	return nil
}
