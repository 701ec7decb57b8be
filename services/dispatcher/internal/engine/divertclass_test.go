package engine

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
)

// Also while the database is away: what it had refused just before is refused, and not kept for it to refuse again.
func TestOnlyAFailureOfTheDatabasesOwnClassPutsAPushIntoTheSpool(t *testing.T) {
	t.Parallel()
	s := &spooler{e: &Engine{}}
	s.away.Store(true)
	code := func(code string) error { return fmt.Errorf("flush: %w", &pgconn.PgError{Code: code}) }

	for _, itsOwn := range []error{code("22P05"), code("23514"), code("42P01"), code("40001"), code("54000"), errors.New("encode"), ErrDraining} {
		require.False(t, s.suspect(t.Context(), itsOwn, time.Time{}), "%v", itsOwn)
	}
	for _, outage := range []error{code("57P01"), code("57P03"), code("53100"), fmt.Errorf("dial: %w", syscall.ECONNREFUSED), context.DeadlineExceeded} {
		require.True(t, s.suspect(t.Context(), outage, time.Time{}), "%v", outage)
	}
}
