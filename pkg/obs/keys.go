package obs

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/tenant"
)

// The keys of log lines. A line uses these and no others, so that one query finds one thing in every service; a new key is added here first.
const (
	KeyService  = "service"
	KeyVersion  = "version"
	KeyHost     = "host_id"
	KeyAddr     = "addr"
	KeyPart     = "part"
	KeyTenant   = "tenant_id"
	KeyActor    = "actor"
	KeyEpoch    = "epoch"
	KeyBytes    = "bytes"
	KeyDuration = "duration"
	KeyMethod   = "method"
	KeyRoute    = "route"
	KeyStatus   = "status"
	KeyCode     = "code"
	KeyReason   = "reason"
	KeyErrorID  = "error_id"
	KeyTrace    = "trace_id"
	KeyRequest  = "request_id"
	KeySignal   = "signal"
	KeyState    = "state"
	KeyErr      = "err"
)

// Err is the error that a line is about.
func Err(err error) zap.Field { return zap.NamedError(KeyErr, err) }

// Tenant is the tenant that a line is about.
func Tenant(id tenant.ID) zap.Field { return zap.String(KeyTenant, string(id)) }

// Addr is the address that a line is about.
func Addr(addr string) zap.Field { return zap.String(KeyAddr, addr) }

// Epoch is the epoch that a line is about; any integer type serves.
func Epoch[E ~int64 | ~uint64](epoch E) zap.Field { return zap.Int64(KeyEpoch, int64(epoch)) }

// Duration is how long something took.
func Duration(d time.Duration) zap.Field { return zap.Duration(KeyDuration, d) }

// Request returns what a line about the request of ctx says of it: its tenant and actor, and its trace where there is one.
func Request(ctx context.Context) []zap.Field {
	var fields []zap.Field
	if c, ok := tenant.CallerFrom(ctx); ok {
		fields = append(fields, Tenant(c.Tenant), zap.String(KeyActor, c.Actor))
	}
	if sc := trace.SpanContextFromContext(ctx); sc.HasTraceID() {
		fields = append(fields, zap.String(KeyTrace, sc.TraceID().String()))
	}
	return fields
}

// Failure returns what a line about a failed request says of the failure, cause included.
func Failure(e *apierr.Error) []zap.Field {
	fields := []zap.Field{zap.Stringer(KeyCode, e.Code), zap.String(KeyReason, e.Reason), Err(e)}
	if id := e.Meta[apierr.MetaErrorID]; id != "" {
		fields = append(fields, zap.String(KeyErrorID, id))
	}
	return fields
}
