// Package apierr is the one vocabulary of errors that cross a process border.
//
// An Error carries a gRPC code, a stable upper-snake Reason that clients switch on, and a sentence for people. It travels losslessly over gRPC (a status
// with ErrorInfo, BadRequest and RetryInfo) and is written to HTTP clients as application/problem+json. Domain errors become an Error in one place of
// each service (server/errors.go) and nowhere else.
//
// What we did not mean to tell is not told: From turns any foreign error into INTERNAL with an error_id; its cause stays in the process, reachable by
// Unwrap for the log line that carries the same id.
package apierr

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
)

// Domain is the ErrorInfo domain of our reasons.
const Domain = "postrider.dev"

// Reasons this package gives by itself. Services define their own beside these.
const (
	ReasonInternal             = "INTERNAL"
	ReasonCanceled             = "CANCELLED"
	ReasonDeadlineExceeded     = "DEADLINE_EXCEEDED"
	ReasonUnreachable          = "UNAVAILABLE" // a part of ours did not answer
	ReasonPayloadTooLarge      = "PAYLOAD_TOO_LARGE"
	ReasonUnsupportedMediaType = "UNSUPPORTED_MEDIA_TYPE"
	ReasonMethodNotAllowed     = "METHOD_NOT_ALLOWED"
	ReasonRouteNotFound        = "ROUTE_NOT_FOUND"
)

// Error is an error as a client sees it. It is made by the constructors below and not changed afterwards: the With methods return copies.
type Error struct {
	Code       codes.Code        // never OK
	Reason     string            // stable, ^[A-Z][A-Z0-9_]*$, for programs
	Message    string            // for people; may change between releases
	Field      string            // the request field at fault, as a path ("items[3].key"); empty if none is
	Meta       map[string]string // facts a client may act on; keys are snake_case
	RetryAfter time.Duration     // > 0: when to try again

	status int             // an HTTP status other than that of Code; 0 for none
	cause  error           // stays in the process
	detail []proto.Message // of a service's own; see WithDetail
}

// Error returns the reason, the field, the message and, for our own logs, the cause.
func (e *Error) Error() string {
	s := e.Reason + ": "
	if e.Field != "" {
		s += e.Field + ": "
	}
	s += e.Message
	if e.cause != nil {
		s += ": " + e.cause.Error()
	}
	return s
}

// Unwrap returns the cause, which never leaves the process.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is an *Error with the same code and reason.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error) // errors.Is walks the chain; this compares one link
	return ok && t.Code == e.Code && t.Reason == e.Reason
}

// With returns a copy of e with one more fact in Meta.
func (e *Error) With(key string, value any) *Error {
	c := e.clone()
	if c.Meta == nil {
		c.Meta = make(map[string]string, 1)
	}
	c.Meta[key] = fmt.Sprint(value)
	return c
}

// WithField returns a copy of e that blames a request field.
func (e *Error) WithField(field string) *Error {
	c := e.clone()
	c.Field = field
	return c
}

// WithRetryAfter returns a copy of e that tells when to try again.
func (e *Error) WithRetryAfter(d time.Duration) *Error {
	c := e.clone()
	c.RetryAfter = d
	return c
}

// WithCause returns a copy of e that remembers what led to it. The cause is logged and unwrapped inside the process and never sent.
func (e *Error) WithCause(err error) *Error {
	c := e.clone()
	c.cause = err
	return c
}

// WithDetail returns a copy of e that carries a message of the service's own contract, for those who know it: over gRPC among the details of the status. Over
// HTTP the service writes it itself.
func (e *Error) WithDetail(m proto.Message) *Error {
	c := e.clone()
	c.detail = append(slices.Clone(c.detail), m)
	return c
}

// Details returns what WithDetail added.
func (e *Error) Details() []proto.Message { return slices.Clone(e.detail) }

func (e *Error) clone() *Error {
	c := *e
	c.Meta = maps.Clone(e.Meta)
	return &c
}

func newError(code codes.Code, reason, msg string) *Error {
	return &Error{Code: code, Reason: reason, Message: msg}
}

// InvalidArgument says that a field of the request is wrong whatever the state of the system. 400.
func InvalidArgument(reason, field, msg string) *Error {
	return newError(codes.InvalidArgument, reason, msg).WithField(field)
}

// OutOfRange says that a value is valid but past what exists. 400.
func OutOfRange(reason, field, msg string) *Error {
	return newError(codes.OutOfRange, reason, msg).WithField(field)
}

// PayloadTooLarge says that the request, or a field of it, has more bytes than allowed. InvalidArgument, 413: trying again never helps.
func PayloadTooLarge(field, msg string) *Error {
	e := InvalidArgument(ReasonPayloadTooLarge, field, msg)
	e.status = http.StatusRequestEntityTooLarge
	return e
}

// UnsupportedMediaType says that the request's content type is not one we read. InvalidArgument, 415.
func UnsupportedMediaType(msg string) *Error {
	e := newError(codes.InvalidArgument, ReasonUnsupportedMediaType, msg)
	e.status = http.StatusUnsupportedMediaType
	return e
}

// Unprocessable says that the request is well formed and contradicts an earlier one, such as an idempotency key used with another body.
// FailedPrecondition, 422.
func Unprocessable(reason, field, msg string) *Error {
	e := newError(codes.FailedPrecondition, reason, msg).WithField(field)
	e.status = http.StatusUnprocessableEntity
	return e
}

// MethodNotAllowed says that the route exists with other methods. Unimplemented, 405.
func MethodNotAllowed(msg string) *Error {
	e := newError(codes.Unimplemented, ReasonMethodNotAllowed, msg)
	e.status = http.StatusMethodNotAllowed
	return e
}

// RouteNotFound says that no route has this path. Unimplemented, 404.
func RouteNotFound(msg string) *Error {
	e := newError(codes.Unimplemented, ReasonRouteNotFound, msg)
	e.status = http.StatusNotFound
	return e
}

// NotFound says that what the request names does not exist for this caller. 404.
func NotFound(reason, msg string) *Error { return newError(codes.NotFound, reason, msg) }

// AlreadyExists says that what the request would create exists. 409.
func AlreadyExists(reason, msg string) *Error { return newError(codes.AlreadyExists, reason, msg) }

// Aborted says that the request lost to a concurrent change, such as a stale epoch. 409.
func Aborted(reason, msg string) *Error { return newError(codes.Aborted, reason, msg) }

// FailedPrecondition says that the system is not in the state the request needs, and repeating the request will not change that. 400.
func FailedPrecondition(reason, msg string) *Error {
	return newError(codes.FailedPrecondition, reason, msg)
}

// Unauthenticated says that the caller did not prove who it is. 401.
func Unauthenticated(reason, msg string) *Error { return newError(codes.Unauthenticated, reason, msg) }

// PermissionDenied says that the caller, known, may not do this. 403.
func PermissionDenied(reason, msg string) *Error {
	return newError(codes.PermissionDenied, reason, msg)
}

// ResourceExhausted says that a limit is reached now and when it makes sense to try again (zero: unknown). 429.
func ResourceExhausted(reason, msg string, retryAfter time.Duration) *Error {
	return newError(codes.ResourceExhausted, reason, msg).WithRetryAfter(retryAfter)
}

// Unavailable says that the service cannot do this now, that nothing was changed, and when to try again (zero: unknown). 503.
func Unavailable(reason, msg string, retryAfter time.Duration) *Error {
	return newError(codes.Unavailable, reason, msg).WithRetryAfter(retryAfter)
}

// DeadlineExceeded says that time ran out; the effect may have happened. 504.
func DeadlineExceeded(msg string) *Error {
	return newError(codes.DeadlineExceeded, ReasonDeadlineExceeded, msg)
}

// Canceled says that the caller went away. 499.
func Canceled(msg string) *Error { return newError(codes.Canceled, ReasonCanceled, msg) }

// Unimplemented says that this server does not offer the operation. 501.
func Unimplemented(reason, msg string) *Error { return newError(codes.Unimplemented, reason, msg) }
