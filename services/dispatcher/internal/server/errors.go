package server

import (
	"context"
	"errors"
	"time"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/store"
)

// Reasons of the queue area beside those of package invalid.
const (
	ReasonQueueNotFound      = "QUEUE_NOT_FOUND"
	ReasonQueueLeased        = "QUEUE_LEASED"
	ReasonQueueEncrypted     = "QUEUE_ENCRYPTED"
	ReasonQueueNotEncrypted  = "QUEUE_NOT_ENCRYPTED"
	ReasonTooManyKeys        = "TOO_MANY_KEYS"
	ReasonKeyMissing         = "ENCRYPTION_KEY_MISSING"
	ReasonModesUnknown       = "MODES_UNKNOWN"
	ReasonGroupNotFound      = "GROUP_NOT_FOUND"
	ReasonTooManyGroups      = "TOO_MANY_GROUPS"
	ReasonDeadLetterNotFound = "DEAD_LETTER_NOT_FOUND"
	ReasonDeadLetterTrimmed  = "DEAD_LETTER_WITHOUT_MESSAGE"
	ReasonMessageNotFound    = "MESSAGE_NOT_FOUND"
	ReasonOutcomeUnknown     = "OUTCOME_UNKNOWN"
	ReasonDatabaseBusy       = "DATABASE_BUSY"
	ReasonDatabaseAway       = "DATABASE_UNAVAILABLE"
	ReasonUnauthenticated    = "UNAUTHENTICATED"
	ReasonDraining           = "DRAINING"
)

// wireError makes of an error of the domain, the store or the engine what the caller is told; nil of nil. Nothing else decides codes.
func wireError(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*apierr.Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*invalid.Error](err); ok {
		return invalidError(e)
	}
	for _, known := range []struct {
		is   error
		wire *apierr.Error
	}{
		{store.ErrQueueNotFound, apierr.NotFound(ReasonQueueNotFound, "there is no such queue")},
		{store.ErrGroupNotFound, apierr.NotFound(ReasonGroupNotFound, "the queue has no such group")},
		{store.ErrDeadLetterNotFound, apierr.NotFound(ReasonDeadLetterNotFound, "the queue has no such dead letter")},
		{store.ErrMessageNotFound, apierr.NotFound(ReasonMessageNotFound, "the queue has no such message, or not any more")},
		{store.ErrQueueLeased, apierr.FailedPrecondition(ReasonQueueLeased, "messages of the queue are leased; force deletes it all the same")},
		{store.ErrInClear, apierr.FailedPrecondition(ReasonQueueEncrypted, "the dead letter is encrypted, and the queue that has the name now is not")},
		{store.ErrNotListed, apierr.FailedPrecondition(ReasonQueueEncrypted, "names of partitions of an encrypted queue are not kept, so they cannot be listed")},
		{store.ErrNotEncrypted, apierr.FailedPrecondition(ReasonQueueNotEncrypted, "the queue is not encrypted: it has no key")},
		{store.ErrTooManyKeys, apierr.FailedPrecondition(ReasonTooManyKeys, "the queue had as many keys as one may have")},
		{store.ErrKeyMissing, apierr.Unavailable(ReasonKeyMissing, "the queue is encrypted with a key that this dispatcher has not; nothing was done", 5*time.Second)},
		{store.ErrTooManyGroups, apierr.FailedPrecondition(ReasonTooManyGroups, "the queue has as many groups as its max_groups allows")},
		{store.ErrTrimmed, apierr.FailedPrecondition(ReasonDeadLetterTrimmed, "the message was gone when it became a dead letter; there is nothing to redrive")},
	} {
		if errors.Is(err, known.is) {
			return known.wire.WithCause(err)
		}
	}
	if errors.Is(err, store.ErrQueueFull) {
		return apierr.ResourceExhausted(ReasonQueueFull, "the queue is full; nothing more was redriven", time.Second).WithCause(err)
	}
	if e := idempotency.WireError(err); e != nil {
		return e
	}
	if e := engineError(err); e != nil {
		return e
	}
	return databaseError(err)
}

// invalidError keeps the code of a broken rule as the reason.
func invalidError(e *invalid.Error) *apierr.Error {
	switch e.Code { //nolint:exhaustive // these are the exceptions
	case invalid.MessageTooLarge:
		wire := apierr.PayloadTooLarge(e.Field, e.Detail)
		wire.Reason = string(e.Code)
		return wire
	case invalid.GroupMismatch:
		return apierr.AlreadyExists(string(e.Code), e.Detail).WithField(e.Field)
	case invalid.OptionFixed, invalid.NoEncryptionKey:
		return apierr.FailedPrecondition(string(e.Code), e.Detail).WithField(e.Field)
	}
	return apierr.InvalidArgument(string(e.Code), e.Field, e.Detail)
}

// databaseError tells a caller whether to try again, and whether something may have happened.
func databaseError(err error) error {
	switch {
	case pg.IsOutcomeUnknown(err):
		wire := apierr.DeadlineExceeded("the database was lost while it committed; the change may have happened: look, or ask again")
		wire.Reason = ReasonOutcomeUnknown
		return wire.WithCause(err)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return apierr.From(err)
	case pg.IsSerialization(err), pg.IsLockTimeout(err):
		return apierr.Unavailable(ReasonDatabaseBusy, "the row is in use; nothing was changed", 200*time.Millisecond).WithCause(err)
	case pg.IsRetryable(err):
		return apierr.Unavailable(ReasonDatabaseAway, "the database cannot be reached; nothing was changed", time.Second).WithCause(err)
	}
	return apierr.From(err)
}
