package server

import (
	"errors"
	"time"

	"postrider.dev/pkg/apierr"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/store"
)

// Reasons of the hot verbs.
const (
	ReasonStaleEpoch  = "STALE_EPOCH"
	ReasonKeyReused   = "IDEMPOTENCY_KEY_REUSED"
	ReasonOverloaded  = "OVERLOADED"
	ReasonMaintenance = "MAINTENANCE"
	ReasonSpoolFull   = "SPOOL_FULL"
	ReasonSpoolDisk   = "SPOOL_DISK"
	ReasonBuffering   = "WOULD_BE_BUFFERED"
	// ReasonLogReplaced is told where a reader has been further than the log goes.
	ReasonLogReplaced = "LOG_REPLACED"
	ReasonQueueFull   = "QUEUE_FULL"

	// Of settlements.
	reasonNotLeased = "NOT_LEASED"
	reasonSettled   = "ALREADY_SETTLED"
	reasonBehind    = "BEHIND_FAILED"
)

// spoolFullRetry is when there may be room again: the database has to come back first.
const spoolFullRetry = 5 * time.Second

// engineError translates the engine's own errors; nil if err is none of them.
func engineError(err error) *apierr.Error {
	if e, ok := errors.AsType[*engine.OverloadedError](err); ok {
		return apierr.ResourceExhausted(ReasonOverloaded, e.Error(), e.RetryAfter)
	}
	if e, ok := errors.AsType[*engine.QueueFullError](err); ok {
		return apierr.ResourceExhausted(ReasonQueueFull, e.Error(), e.RetryAfter)
	}
	if _, ok := errors.AsType[*engine.OutcomeUnknownError](err); ok {
		wire := apierr.DeadlineExceeded("the database was lost while it committed: the push may have been done, or a part of it; with idempotency keys a repeat is safe")
		wire.Reason = ReasonOutcomeUnknown
		return wire.WithCause(err)
	}
	if _, ok := errors.AsType[*engine.TransactUnknownError](err); ok {
		wire := apierr.DeadlineExceeded("the database was lost while it committed: all of the transaction was done, or nothing; under its idempotency key a repeat is safe")
		wire.Reason = ReasonOutcomeUnknown
		return wire.WithCause(err)
	}
	if _, ok := errors.AsType[*engine.UnavailableError](err); ok {
		return apierr.Unavailable(ReasonDatabaseAway, "the database cannot be reached; the request may be repeated", time.Second).WithCause(err)
	}
	switch {
	case errors.Is(err, engine.ErrWouldBeBuffered):
		return apierr.Unavailable(ReasonBuffering, "the push requires a commit and would only be buffered now; nothing was done", time.Second)
	case errors.Is(err, engine.ErrMaintenance):
		return apierr.Unavailable(ReasonMaintenance, "the fleet is in maintenance, and what was pushed cannot be buffered; nothing was done", spoolFullRetry)
	case errors.Is(err, engine.ErrSpoolFull):
		return apierr.Unavailable(ReasonSpoolFull, "the database cannot take the push now and the spool is full; nothing was done", spoolFullRetry)
	case errors.Is(err, engine.ErrSpoolDisk):
		return apierr.Unavailable(ReasonSpoolDisk, "the database cannot take the push now and the disk of the spool refuses; nothing was done", spoolFullRetry).WithCause(err)
	case errors.Is(err, engine.ErrNotDeduplicated):
		return apierr.FailedPrecondition(ReasonOutcomeUnknown, "the push was sent before and may have been done; no idempotency key keeps a repeat from being appended again")
	case errors.Is(err, engine.ErrStaleEpoch):
		return apierr.Aborted(ReasonStaleEpoch, engine.StaleDetail)
	case errors.Is(err, engine.ErrLogReplaced):
		return apierr.FailedPrecondition(ReasonLogReplaced, "the log ends before the offset: it is not the one that was read before").WithCause(err)
	case errors.Is(err, engine.ErrDraining):
		return apierr.Unavailable(ReasonDraining, "the node is going away; nothing was done", 0)
	case errors.Is(err, store.ErrKeyReused):
		return apierr.Unprocessable(ReasonKeyReused, "idempotency_key", "the key was used for another request")
	}
	return nil
}
