package engine

import "errors"

var (
	// ErrNoDispatcher says that no dispatcher could be reached in time; nothing was done.
	ErrNoDispatcher = errors.New("no dispatcher in reach")
	// ErrOutcomeUnknown says that the dispatcher was lost while it had the operation: it may have been done.
	ErrOutcomeUnknown = errors.New("outcome unknown: the dispatcher was lost")
	// ErrOverloaded says that too much is in flight here; nothing was done.
	ErrOverloaded = errors.New("too much in flight")

	errNotSent = errors.New("stream broke before the operation was sent")
	errBroken  = errors.New("stream broke while the operation was out")
	errMoved   = errors.New("dispatcher drains")
)
