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
	codeNotLeased   = "NOT_LEASED"
	codeSettled     = "ALREADY_SETTLED"
	codeKeyReused   = "IDEMPOTENCY_KEY_REUSED"
	codeUnavailable = "DATABASE_UNAVAILABLE"
	codeDraining    = "DRAINING"
	codeInternal    = "INTERNAL"
)

// StaleDetail is how ErrStaleEpoch is told to people. Which of the two it was, nothing remembers.
const StaleDetail = "the lease is not held any more: all of it was settled or given back, or it was lost; nothing was changed"

// Why a settlement is refused although nothing is known to be wrong with its lease.
var (
	errNotLeased = errors.New("the message is not of this lease")
	errSettled   = errors.New("the message was settled before")
)

// itemError is how an error is told about one item of a request.
func itemError(err error) *queuev1.ItemError {
	if bad, ok := errors.AsType[*invalid.Error](err); ok {
		return &queuev1.ItemError{Code: string(bad.Code), Field: bad.Field, Message: bad.Field + " " + bad.Detail}
	}
	switch {
	case errors.Is(err, ErrStaleEpoch):
		return &queuev1.ItemError{Code: codeStale, Message: StaleDetail}
	case errors.Is(err, errNotLeased):
		return &queuev1.ItemError{Code: codeNotLeased, Message: "the lease does not hold this message: it never did, or the message came back"}
	case errors.Is(err, errSettled):
		return &queuev1.ItemError{Code: codeSettled, Message: "the message was settled before: acked, or it is a dead letter"}
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
