package engine

import (
	"errors"
	"fmt"
)

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

// TooLargeError says that an operation has more bytes than a frame to a dispatcher can carry; nothing was done.
type TooLargeError struct{ Size, Limit int64 }

// Error names both sizes.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("operation of %d bytes, at most %d fit a frame", e.Size, e.Limit)
}
