package engine

import (
	"errors"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/store"
)

// Codes of items, beside those of package invalid.
const (
	codeStale       = "STALE_EPOCH"
	codeKeyReused   = "IDEMPOTENCY_KEY_REUSED"
	codeUnavailable = "DATABASE_UNAVAILABLE"
	codeDraining    = "DRAINING"
	codeInternal    = "INTERNAL"
)

// itemError is how an error is told about one item of a request.
func itemError(err error) *queuev1.ItemError {
	if bad, ok := errors.AsType[*invalid.Error](err); ok {
		return &queuev1.ItemError{Code: string(bad.Code), Field: bad.Field, Message: bad.Field + " " + bad.Detail}
	}
	switch {
	case errors.Is(err, ErrStaleEpoch):
		return &queuev1.ItemError{Code: codeStale, Message: "the message is not held under this lease any more"}
	case errors.Is(err, ErrDraining):
		return &queuev1.ItemError{Code: codeDraining, Message: "the dispatcher is going away; nothing was done"}
	case errors.Is(err, store.ErrKeyReused):
		return &queuev1.ItemError{Code: codeKeyReused, Field: "idempotency_key", Message: "the key was used for another message"}
	}
	if _, ok := errors.AsType[*UnavailableError](err); ok {
		return &queuev1.ItemError{Code: codeUnavailable, Message: "the database cannot be reached"}
	}
	return &queuev1.ItemError{Code: codeInternal, Message: "the message could not be stored"}
}
