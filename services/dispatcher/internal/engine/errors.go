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

// UnavailableError says that the database could not be reached, or could not do it in time. Whether a push or a settlement took effect may be unknown;
// each is safe to repeat.
type UnavailableError struct{ Err error }

func (e *UnavailableError) Error() string { return "database unavailable: " + e.Err.Error() }

func (e *UnavailableError) Unwrap() error { return e.Err }
