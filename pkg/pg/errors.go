package pg

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Code returns the SQLSTATE in err, "" when the server reported none.
func Code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// IsUnique says that the named unique constraint or index refused the write; any, when constraint is "".
func IsUnique(err error, constraint string) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && e.Code == "23505" && (constraint == "" || e.ConstraintName == constraint)
}

// IsNoRows says that a query for one row found none.
func IsNoRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }

// IsSerialization says that the transaction lost against another (serialization failure or deadlock) and did nothing.
func IsSerialization(err error) bool {
	code := Code(err)
	return code == "40001" || code == "40P01"
}

// IsLockTimeout says that a lock was not given within lock_timeout, or not at once with NOWAIT.
func IsLockTimeout(err error) bool { return Code(err) == "55P03" }

// IsShutdown says that the server is going down, went down, or is starting.
func IsShutdown(err error) bool {
	switch Code(err) {
	case "57P01", "57P02", "57P03":
		return true
	}
	return false
}

// IsTooManyConnections says that the server has no connection left to give.
func IsTooManyConnections(err error) bool { return Code(err) == "53300" }

// IsDataError says that a value was refused (class 22: does not fit its type; class 23: breaks a constraint). Repeating the statement is useless, and
// the fault is with one of its rows.
func IsDataError(err error) bool {
	code := Code(err)
	return strings.HasPrefix(code, "22") || strings.HasPrefix(code, "23")
}

// IsConnectionLost says that the connection could not be made or is gone. Whether the statement took effect is another question: IsOutcomeUnknown. The end
// of the caller's own context is not a lost connection.
func IsConnectionLost(err error) bool {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(e.Code, "08") || IsShutdown(err) || e.Code == "25P03" || e.Code == "57P05"
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return !errors.Is(err, context.Canceled)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	for _, lost := range []error{pgconn.ErrConnClosed, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, lost) {
			return true
		}
	}
	_, ok := errors.AsType[net.Error](err)
	return ok
}

// IsUnavailable says that it was the server, or the way to it, and not the statement: the connection was lost or could not be made, the server is going
// down or starting, has no connection left, is read-only (a standby, or an old primary), or its disk is full or broken. Another statement would have met
// the same. Whether this one took effect is another question: IsOutcomeUnknown.
func IsUnavailable(err error) bool {
	switch Code(err) {
	case "25006", "53100", "58030":
		return true
	}
	return IsTooManyConnections(err) || IsConnectionLost(err)
}

// IsRetryable says that the whole transaction did nothing and may succeed when run again: it lost against another, waited too long for a lock, or the
// server or the way to it was gone before COMMIT was sent.
func IsRetryable(err error) bool {
	if err == nil || IsOutcomeUnknown(err) {
		return false
	}
	return IsSerialization(err) || IsLockTimeout(err) || IsShutdown(err) || IsTooManyConnections(err) || IsConnectionLost(err)
}

// OutcomeUnknownError says that the connection was lost after COMMIT was sent and before its result was heard: the transaction may have happened.
type OutcomeUnknownError struct{ Err error }

func (e *OutcomeUnknownError) Error() string { return "commit: outcome unknown: " + e.Err.Error() }

func (e *OutcomeUnknownError) Unwrap() error { return e.Err }

// IsOutcomeUnknown says that nobody knows whether the write happened.
func IsOutcomeUnknown(err error) bool {
	_, ok := errors.AsType[*OutcomeUnknownError](err)
	return ok
}

// CommitError classifies the error of a COMMIT, or of a statement outside a transaction, which is its own COMMIT. It returns err as it is when the
// write certainly did not happen, and as *OutcomeUnknownError otherwise. The end of the caller's context while waiting counts as unknown: the driver then
// cuts the connection, and the server may have been done. So does "connection closed": the driver says it, with the promise that nothing was sent, also
// when the connection broke while it waited for the answer to a simple query or a batch.
func CommitError(err error) error {
	if err == nil || IsOutcomeUnknown(err) || pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed) {
		return err
	}
	if e, ok := errors.AsType[*pgconn.PgError](err); ok && e.SeverityUnlocalized == "ERROR" {
		return err
	}
	for _, certain := range []error{pgx.ErrTxCommitRollback, pgx.ErrTxClosed, pgx.ErrNoRows, pgx.ErrTooManyRows} {
		if errors.Is(err, certain) {
			return err
		}
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return err
	}
	return &OutcomeUnknownError{Err: err}
}
