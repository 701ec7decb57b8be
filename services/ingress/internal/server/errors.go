package server

import (
	"errors"
	"fmt"
	"time"

	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/idempotency"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/domain/jsonscan"
	"postrider.dev/services/ingress/internal/engine"
	"postrider.dev/services/ingress/internal/engine/keyring"
	"postrider.dev/services/ingress/internal/engine/tail"
)

// Reasons this service gives by itself, beside those of domain, jsonscan and wire.
const (
	reasonMissingKey      = "MISSING_KEY"
	reasonInvalidKey      = "INVALID_KEY"
	reasonAmbiguousKey    = "AMBIGUOUS_KEY"
	reasonAuthUnavailable = "AUTH_UNAVAILABLE"
	reasonRoleTooLow      = "ROLE_TOO_LOW"
	reasonDefaultTenant   = "DEFAULT_TENANT_ONLY"
	reasonNotListed       = "NOT_LISTED"
	reasonNoDispatcher    = "NO_DISPATCHER"
	reasonOutcomeUnknown  = "OUTCOME_UNKNOWN"
	reasonOverloaded      = "OVERLOADED"
	reasonDraining        = "DRAINING"
	reasonTenantExists    = "TENANT_EXISTS"
	reasonTenantNotFound  = "TENANT_NOT_FOUND"
	reasonKeyNotFound     = "KEY_NOT_FOUND"
	reasonDatabaseAway    = "DATABASE_UNAVAILABLE"
	reasonExpiryPast      = "EXPIRES_IN_THE_PAST"
	reasonResumeGone      = "RESUME_POINT_GONE"
	reasonSlow            = "SLOW"
)

const retrySoon = time.Second

// wireError turns what the parts below return into what a client may see. It is the only place that does.
func wireError(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*jsonscan.Error](err); ok {
		out := apierr.InvalidArgument(e.Code, e.Field, fmt.Sprintf("%s (at byte %d)", e.Detail, e.Offset))
		return out.With("offset", e.Offset)
	}
	if e := idempotency.WireError(err); e != nil {
		return e
	}
	if e, ok := errors.AsType[*engine.TooLargeError](err); ok {
		return apierr.PayloadTooLarge("", fmt.Sprintf("the request has %d bytes, headers and names among them; at most %d are allowed", e.Size, e.Limit)).
			With("size", e.Size).With("limit", e.Limit)
	}
	if e, ok := errors.AsType[*tail.OffsetsError](err); ok {
		return apierr.InvalidArgument(domain.CodeStart, "from", e.Detail)
	}
	switch {
	case errors.Is(err, tail.ErrResumeGone):
		return apierr.FailedPrecondition(reasonResumeGone, err.Error()).WithField("resume")
	case errors.Is(err, tail.ErrOverloaded):
		return apierr.ResourceExhausted(reasonOverloaded, "this node has as many subscriptions as it may", retrySoon).WithCause(err)
	case errors.Is(err, tail.ErrStopped):
		return apierr.Unavailable(reasonDraining, "the node drains: subscribe elsewhere", 0)
	case errors.Is(err, engine.ErrNoDispatcher):
		return apierr.Unavailable(reasonNoDispatcher, "no dispatcher can be reached; nothing was done", retrySoon).WithCause(err)
	case errors.Is(err, engine.ErrOutcomeUnknown):
		return apierr.Unavailable(reasonOutcomeUnknown,
			"the dispatcher was lost while it had the request: it may have been done; with idempotency keys a repeat is safe", 0).WithCause(err)
	case errors.Is(err, engine.ErrOverloaded):
		return apierr.ResourceExhausted(reasonOverloaded, "too much is in flight on this node", retrySoon).WithCause(err)
	case errors.Is(err, keyring.ErrRefused):
		return apierr.Unauthenticated(reasonInvalidKey, "the API key is not valid")
	case errors.Is(err, keyring.ErrAway):
		return apierr.Unavailable(reasonAuthUnavailable, "the API key cannot be checked now", retrySoon).WithCause(err)
	case errors.Is(err, domain.ErrAway):
		return apierr.Unavailable(reasonDatabaseAway, "the database cannot be reached now", retrySoon).WithCause(err)
	}
	return err
}

// violation turns a broken rule into its wire error.
func violation(v *domain.Violation) error {
	if v == nil {
		return nil
	}
	if v.Code == domain.CodeTooLarge {
		return apierr.PayloadTooLarge(v.Field, v.Detail).With("size", v.Size).With("limit", v.Limit)
	}
	e := apierr.InvalidArgument(v.Code, v.Field, v.Detail)
	if v.Limit > 0 {
		e = e.With("size", v.Size).With("limit", v.Limit)
	}
	return e
}

// itemFault turns a broken rule into the error of one item.
func itemFault(v *domain.Violation) *queuev1.ItemError {
	return &queuev1.ItemError{Code: v.Code, Message: v.Detail, Field: v.Field}
}

// statusError decodes the error of an exchanged operation.
func statusError(s *rpcstatus.Status) error {
	return apierr.FromStatus(status.FromProto(s))
}

// itemError is the error that stands for a request none of whose items was accepted: the first item's.
func itemError(e *queuev1.ItemError) *apierr.Error {
	switch e.GetCode() {
	case domain.CodeTooLarge:
		out := apierr.PayloadTooLarge(e.GetField(), e.GetMessage())
		out.Reason = domain.CodeTooLarge
		return out
	case idempotency.ReasonReused:
		return apierr.Unprocessable(e.GetCode(), e.GetField(), e.GetMessage())
	case reasonDatabaseAway:
		return apierr.Unavailable(e.GetCode(), e.GetMessage(), retrySoon)
	case apierr.ReasonInternal: // its cause is in the dispatcher's log, so there is no error_id of ours to give
		return &apierr.Error{Code: codes.Internal, Reason: e.GetCode(), Message: e.GetMessage(), Field: e.GetField()}
	}
	return apierr.InvalidArgument(e.GetCode(), e.GetField(), e.GetMessage())
}
