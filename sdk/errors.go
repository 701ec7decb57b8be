package postrider

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

var (
	// ErrOutcomeUnknown is matched by the error of an operation that may or may not have happened.
	ErrOutcomeUnknown = errors.New("outcome unknown")
	// ErrLeaseLost is the cause of a handler's context when its lease could not be renewed in time: another consumer may have the message.
	ErrLeaseLost = errors.New("lease lost")
	// ErrClosed is returned by operations on a closed client.
	ErrClosed = errors.New("client is closed")
)

// Error is a refusal by the server.
type Error struct {
	// Code is stable, such as STALE_EPOCH or QUEUE_NOT_FOUND.
	Code string
	// Status is the gRPC status that goes with it.
	Status codes.Code
	// Message is for people.
	Message string
	// Field is the field at fault, where there is one.
	Field string
	// RetryAfter is set when the server says when to try again.
	RetryAfter time.Duration
	// OutcomeUnknown says that the operation may have happened.
	OutcomeUnknown bool
}

func (e *Error) Error() string {
	if e.Field != "" {
		return fmt.Sprintf("%s: %s (%s)", e.Code, e.Message, e.Field)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Is makes errors.Is(err, ErrOutcomeUnknown) work.
func (e *Error) Is(target error) bool { return target == ErrOutcomeUnknown && e.OutcomeUnknown }

// Code returns the stable code of an error of this package, or "".
func Code(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// fromStatus turns a gRPC error into an *Error.
func fromStatus(err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	e := &Error{Code: st.Code().String(), Status: st.Code(), Message: st.Message()}
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			e.Code = d.GetReason()
		case *errdetails.RetryInfo:
			e.RetryAfter = d.GetRetryDelay().AsDuration()
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				e.Field = v.GetField()
			}
		}
	}
	return e
}

// tooLarge refuses, as the server refuses what is too large for it, what is too large to be sent.
func tooLarge(size int) error {
	st := status.New(codes.InvalidArgument, fmt.Sprintf("the request has %d bytes; at most 32 MiB are allowed", size))
	if said, err := st.WithDetails(&errdetails.ErrorInfo{Reason: "PAYLOAD_TOO_LARGE", Domain: "postrider.dev"}); err == nil {
		st = said
	}
	return st.Err()
}

// sayTooLarge gives a unary call that gRPC did not send for its size the code it would have had.
func sayTooLarge(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := call(ctx, method, req, reply, conn, opts...)
	if status.Code(err) != codes.ResourceExhausted {
		return err
	}
	m, ok := req.(proto.Message)
	if !ok {
		return err
	}
	if size := proto.Size(m); size > maxFrame {
		return tooLarge(size)
	}
	return err
}

// fromItem turns an item's error into an *Error, or nil.
func fromItem(e *queuev1.ItemError) error {
	if e == nil {
		return nil
	}
	return &Error{Code: e.GetCode(), Status: codes.InvalidArgument, Message: e.GetMessage(), Field: e.GetField()}
}

// statusOf returns the gRPC code of an error of this package, or Unknown.
func statusOf(err error) codes.Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status
	}
	return codes.Unknown
}

// isAway reports whether the node was not reachable or is going away, so that another may be tried.
func isAway(err error) bool {
	return statusOf(err) == codes.Unavailable
}

// RetryAfter makes a handler's error say when the message should come again, instead of the queue's backoff.
func RetryAfter(err error, after time.Duration) error { return &retryError{err: err, after: after} }

type retryError struct {
	err   error
	after time.Duration
}

func (e *retryError) Error() string { return e.err.Error() }
func (e *retryError) Unwrap() error { return e.err }

// Reject makes a handler's error send the message to the dead letters at once.
func Reject(err error) error { return &rejectError{err: err} }

type rejectError struct{ err error }

func (e *rejectError) Error() string { return e.err.Error() }
func (e *rejectError) Unwrap() error { return e.err }
