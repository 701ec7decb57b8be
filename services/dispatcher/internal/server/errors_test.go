package server

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"postrider.dev/pkg/apierr"
	"postrider.dev/services/dispatcher/internal/engine"
)

// Who is told to come again in a while must be able to do so without harm.
func TestAPushThatMayHaveBeenDoneIsNotOfferedForRepetition(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err    error
		code   codes.Code
		reason string
		retry  time.Duration
	}{
		"unknown":          {&engine.OutcomeUnknownError{Err: errors.New("away")}, codes.DeadlineExceeded, "OUTCOME_UNKNOWN", 0},
		"not deduplicated": {engine.ErrNotDeduplicated, codes.FailedPrecondition, "OUTCOME_UNKNOWN", 0},
		"not done":         {&engine.UnavailableError{Err: errors.New("away")}, codes.Unavailable, "DATABASE_UNAVAILABLE", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wire := apierr.From(wireError(c.err))
			require.Equal(t, c.code, wire.Code)
			require.Equal(t, c.reason, wire.Reason)
			require.Equal(t, c.retry, wire.RetryAfter)
		})
	}
}
