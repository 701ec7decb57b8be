package engine

import (
	"errors"
	"time"
)

// ErrStaleEpoch says that the lease named is gone: it ran out and was taken back, was released, settled to its end, or fenced. It is given only from a
// current version of the group-shard's row.
var ErrStaleEpoch = errors.New("the lease is not held any more")

// ErrDraining says that the dispatcher is going away; nothing of the request was done.
var ErrDraining = errors.New("the dispatcher is draining")

// errGone says inside the engine that a group-shard's row does not exist any more.
var errGone = errors.New("group-shard gone")

// OverloadedError says that more waits for a commit than memory is given for. Nothing of the request was done.
type OverloadedError struct {
	What       string
	RetryAfter time.Duration
}

func (e *OverloadedError) Error() string { return "too many " + e.What }

// ErrNotDeduplicated says that a push may have been done before, and that nothing keeps it from being appended twice: the queue keeps no idempotency keys,
// or the push has none. Nothing was done this time.
var ErrNotDeduplicated = errors.New("a repeated push would be appended again")

// OutcomeUnknownError says that a push may be in the log, all of it or a part, and that the database could not be asked in time. It is no
// *UnavailableError, and does not unwrap to what stood in the way: nobody may take it for something to try again.
type OutcomeUnknownError struct{ Err error }

func (e *OutcomeUnknownError) Error() string { return "outcome of the push unknown: " + e.Err.Error() }

// TransactUnknownError says that a transaction was committed, all of it, or that nothing of it was done, and that the database could not be asked in time.
// Like OutcomeUnknownError it is not for trying again, but under the transaction's key.
type TransactUnknownError struct{ Err error }

func (e *TransactUnknownError) Error() string {
	return "outcome of the transaction unknown: " + e.Err.Error()
}

// UnavailableError says that the database could not be reached, or could not do it in time. Of a push nothing was done. Whether a settlement or a pop took
// effect may be unknown; each is safe to repeat.
type UnavailableError struct{ Err error }

func (e *UnavailableError) Error() string { return "database unavailable: " + e.Err.Error() }

func (e *UnavailableError) Unwrap() error { return e.Err }
