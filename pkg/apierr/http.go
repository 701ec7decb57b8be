package apierr

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// ContentType is the media type of the bodies that WriteHTTP writes (RFC 9457).
const ContentType = "application/problem+json"

// statusClientClosedRequest is nginx's word for a caller that went away; net/http has no name for it.
const statusClientClosedRequest = 499

// HTTPStatus returns the HTTP status e is sent with.
func (e *Error) HTTPStatus() int {
	if e.status != 0 {
		return e.status
	}
	return httpStatus(e.Code)
}

func httpStatus(c codes.Code) int {
	switch c {
	case codes.OK:
		return http.StatusOK
	case codes.Canceled:
		return statusClientClosedRequest
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	case codes.Unknown, codes.Internal, codes.DataLoss:
		return http.StatusInternalServerError
	}
	return http.StatusInternalServerError
}

// reasonOf returns the reason for a status that came without one: the code's own name.
func reasonOf(c codes.Code) string {
	switch c {
	case codes.OK:
		return "OK"
	case codes.Canceled:
		return ReasonCanceled
	case codes.Unknown, codes.Internal:
		return ReasonInternal
	case codes.InvalidArgument:
		return "INVALID_ARGUMENT"
	case codes.DeadlineExceeded:
		return ReasonDeadlineExceeded
	case codes.NotFound:
		return "NOT_FOUND"
	case codes.AlreadyExists:
		return "ALREADY_EXISTS"
	case codes.PermissionDenied:
		return "PERMISSION_DENIED"
	case codes.ResourceExhausted:
		return "RESOURCE_EXHAUSTED"
	case codes.FailedPrecondition:
		return "FAILED_PRECONDITION"
	case codes.Aborted:
		return "ABORTED"
	case codes.OutOfRange:
		return "OUT_OF_RANGE"
	case codes.Unimplemented:
		return "UNIMPLEMENTED"
	case codes.Unavailable:
		return "UNAVAILABLE"
	case codes.DataLoss:
		return "DATA_LOSS"
	case codes.Unauthenticated:
		return "UNAUTHENTICATED"
	}
	return ReasonInternal
}

// Problem is the JSON body of an error.
type Problem struct {
	Type         string            `json:"type"`                     // a URI made of the code, for people who search for it
	Title        string            `json:"title"`                    // the code in words
	Status       int               `json:"status"`                   // the HTTP status again
	Code         string            `json:"code"`                     // Error.Reason
	Detail       string            `json:"detail"`                   // Error.Message
	Field        string            `json:"field,omitempty"`          // Error.Field
	Meta         map[string]string `json:"meta,omitempty"`           // Error.Meta
	RetryAfterMS int64             `json:"retry_after_ms,omitempty"` // Error.RetryAfter
}

// Problem returns e as the body WriteHTTP writes.
func (e *Error) Problem() Problem {
	return Problem{
		Type:         "https://" + Domain + "/errors/" + e.Reason,
		Title:        title(e.Reason),
		Status:       e.HTTPStatus(),
		Code:         e.Reason,
		Detail:       e.Message,
		Field:        e.Field,
		Meta:         e.Meta,
		RetryAfterMS: max(e.RetryAfter, 0).Milliseconds(),
	}
}

// title turns STALE_EPOCH into "Stale epoch".
func title(reason string) string {
	words := strings.ToLower(strings.ReplaceAll(reason, "_", " "))
	if words == "" {
		return ""
	}
	return strings.ToUpper(words[:1]) + words[1:]
}

type observerKey struct{}

// WithObserver returns a context in which WriteHTTP hands each error, cause included, to observe before it answers. Servers log there.
func WithObserver(ctx context.Context, observe func(*Error)) context.Context {
	return context.WithValue(ctx, observerKey{}, observe)
}

// WriteHTTP answers r with err as problem+json, with a Retry-After header where err has one. It MUST be the only answer to r. The body limit of
// http.MaxBytesReader becomes PAYLOAD_TOO_LARGE.
func WriteHTTP(w http.ResponseWriter, r *http.Request, err error) {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok && !isOurs(err) {
		err = PayloadTooLarge("", "the body is larger than "+strconv.FormatInt(tooLarge.Limit, 10)+" bytes").WithCause(err)
	}
	e := From(err)
	if e == nil {
		e = Internal(errors.New("an error answer was asked for without an error"))
	}
	if observe, ok := r.Context().Value(observerKey{}).(func(*Error)); ok {
		observe(e)
	}
	h := w.Header()
	h.Set("Content-Type", ContentType)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	h.Del("Content-Length")
	h.Del("Content-Encoding")
	if e.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((e.RetryAfter+time.Second-1)/time.Second), 10))
	}
	if e.Code == codes.Unauthenticated && h.Get("WWW-Authenticate") == "" {
		h.Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(e.HTTPStatus())
	if r.Method == http.MethodHead {
		return
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(e.Problem()) // the status is sent; a caller that left cannot be told more
}

func isOurs(err error) bool {
	_, ok := errors.AsType[*Error](err)
	return ok
}
