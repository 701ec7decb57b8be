package apierr

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// MetaErrorID is the Meta key under which INTERNAL errors carry the id that the log line carries too.
const MetaErrorID = "error_id"

// metaHTTPStatus carries Error.status over gRPC; it is never seen in Meta.
const metaHTTPStatus = "http_status"

// Internal hides err behind a new error_id. The caller sees INTERNAL and the id; the log line of the server that answers has both.
func Internal(err error) *Error {
	e := newError(codes.Internal, ReasonInternal, "internal error").With(MetaErrorID, uuid.NewString())
	e.cause = err
	return e
}

// From returns err as an *Error that may be sent to a client; nil for nil.
//
// An *Error in the chain is returned as it is, a gRPC status is decoded, the two context errors become CANCELLED and DEADLINE_EXCEEDED, and
// everything else becomes Internal.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if s, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok { // status.FromError would put the wrappers' text into the message
		if e := FromStatus(s.GRPCStatus()); e != nil {
			return e
		}
		return Internal(err) // an error that claims to be OK
	}
	switch {
	case errors.Is(err, context.Canceled):
		return Canceled("the request was cancelled").WithCause(err)
	case errors.Is(err, context.DeadlineExceeded):
		return DeadlineExceeded("the request took longer than its deadline allows").WithCause(err)
	}
	return Internal(err)
}

// Code returns the gRPC code that err has on the wire; OK for nil.
func Code(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	return From(err).Code
}

// Reason returns the reason that err has on the wire; empty for nil.
func Reason(err error) string {
	if err == nil {
		return ""
	}
	return From(err).Reason
}

// GRPCStatus lets grpc send an *Error that a handler returned. FromStatus undoes it without loss, the cause excepted. A server MUST pass its errors
// through From first, as grpcserver does: of a wrapped error grpc would send the whole text.
func (e *Error) GRPCStatus() *status.Status {
	info := &errdetails.ErrorInfo{Reason: e.Reason, Domain: Domain, Metadata: maps.Clone(e.Meta)}
	if e.status != 0 {
		if info.Metadata == nil {
			info.Metadata = make(map[string]string, 1)
		}
		info.Metadata[metaHTTPStatus] = strconv.Itoa(e.status)
	}
	details := []protoadapt.MessageV1{info}
	if e.Field != "" {
		details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: e.Field, Description: e.Message, Reason: e.Reason},
		}})
	}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	for _, m := range e.detail {
		details = append(details, protoadapt.MessageV1Of(m))
	}
	s := status.New(e.Code, e.Message)
	if d, err := s.WithDetails(details...); err == nil {
		return d
	}
	return s // only text that is not UTF-8 gets here; the code and message still travel
}

// FromStatus decodes what GRPCStatus encoded; nil for OK. A status that is not ours keeps its code; its message is kept only where it blames
// the request, because transport errors name internal addresses.
func FromStatus(s *status.Status) *Error {
	if s.Code() == codes.OK {
		return nil
	}
	e := &Error{Code: s.Code(), Message: s.Message()}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == Domain {
				e.setInfo(d)
			}
		case *errdetails.BadRequest:
			if v := d.GetFieldViolations(); len(v) > 0 {
				e.Field = v[0].GetField()
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = max(d.GetRetryDelay().AsDuration(), 0)
		case proto.Message: // of a type that this process knows
			e.detail = append(e.detail, d)
		}
	}
	if e.Reason == "" {
		return foreign(e, s)
	}
	return e
}

func (e *Error) setInfo(info *errdetails.ErrorInfo) {
	e.Reason = info.GetReason()
	for k, v := range info.GetMetadata() {
		if k == metaHTTPStatus {
			if n, err := strconv.Atoi(v); err == nil && n >= 400 && n <= 599 {
				e.status = n
			}
			continue
		}
		if e.Meta == nil {
			e.Meta = make(map[string]string, len(info.GetMetadata()))
		}
		e.Meta[k] = v
	}
}

// foreign returns the Error for a status without our ErrorInfo.
func foreign(e *Error, s *status.Status) *Error {
	code := s.Code()
	if code == codes.Unknown || code == codes.Internal || code == codes.DataLoss {
		return Internal(s.Err())
	}
	if code == codes.Unavailable {
		return Unavailable(ReasonUnreachable, "a part of the service cannot be reached", max(e.RetryAfter, time.Second)).WithCause(s.Err())
	}
	if code == codes.Canceled {
		return Canceled("the request was cancelled").WithCause(s.Err())
	}
	if code == codes.DeadlineExceeded {
		return DeadlineExceeded("the request took longer than its deadline allows").WithCause(s.Err())
	}
	e.Reason = reasonOf(s.Code())
	return e
}
