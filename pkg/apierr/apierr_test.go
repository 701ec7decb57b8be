package apierr_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"postrider.dev/pkg/apierr"
)

func TestHTTPStatusOfEachCode(t *testing.T) {
	t.Parallel()
	want := map[codes.Code]int{
		codes.OK:                 200,
		codes.Canceled:           499,
		codes.Unknown:            500,
		codes.InvalidArgument:    400,
		codes.DeadlineExceeded:   504,
		codes.NotFound:           404,
		codes.AlreadyExists:      409,
		codes.PermissionDenied:   403,
		codes.ResourceExhausted:  429,
		codes.FailedPrecondition: 400,
		codes.Aborted:            409,
		codes.OutOfRange:         400,
		codes.Unimplemented:      501,
		codes.Internal:           500,
		codes.Unavailable:        503,
		codes.DataLoss:           500,
		codes.Unauthenticated:    401,
	}
	require.Len(t, want, 17, "every code is pinned")
	for code, httpStatus := range want {
		require.Equal(t, httpStatus, (&apierr.Error{Code: code}).HTTPStatus(), code)
	}
	require.Equal(t, 500, (&apierr.Error{Code: 99}).HTTPStatus())
}

// constructed has one error of each constructor with the status and code it must have.
func constructed() map[*apierr.Error]struct {
	code   codes.Code
	status int
} {
	type want = struct {
		code   codes.Code
		status int
	}
	return map[*apierr.Error]want{
		apierr.InvalidArgument("NAME_EMPTY", "name", "must not be empty"):               {codes.InvalidArgument, 400},
		apierr.OutOfRange("OFFSET_PAST_END", "offset", "past the end"):                  {codes.OutOfRange, 400},
		apierr.PayloadTooLarge("items[3].payload", "more than 1 MiB"):                   {codes.InvalidArgument, 413},
		apierr.UnsupportedMediaType("want application/json"):                            {codes.InvalidArgument, 415},
		apierr.Unprocessable("KEY_REUSED", "idempotency_key", "used with another body"): {codes.FailedPrecondition, 422},
		apierr.MethodNotAllowed("use POST"):                                             {codes.Unimplemented, 405},
		apierr.RouteNotFound("no such route"):                                           {codes.Unimplemented, 404},
		apierr.NotFound("QUEUE_NOT_FOUND", "no such queue"):                             {codes.NotFound, 404},
		apierr.AlreadyExists("QUEUE_EXISTS", "there is one"):                            {codes.AlreadyExists, 409},
		apierr.Aborted("STALE_EPOCH", "the lease was lost").With("current", 8):          {codes.Aborted, 409},
		apierr.FailedPrecondition("QUEUE_DELETED", "it is being deleted"):               {codes.FailedPrecondition, 400},
		apierr.Unauthenticated("KEY_MISSING", "no key"):                                 {codes.Unauthenticated, 401},
		apierr.PermissionDenied("ROLE", "needs write"):                                  {codes.PermissionDenied, 403},
		apierr.ResourceExhausted("RATE", "too fast", 1500*time.Millisecond):             {codes.ResourceExhausted, 429},
		apierr.Unavailable("NO_DATABASE", "cannot write now", time.Second):              {codes.Unavailable, 503},
		apierr.DeadlineExceeded("too slow"):                                             {codes.DeadlineExceeded, 504},
		apierr.Canceled("gone"):                                                         {codes.Canceled, 499},
		apierr.Unimplemented("NOT_HERE", "not offered"):                                 {codes.Unimplemented, 501},
		apierr.Internal(errors.New("secret detail")):                                    {codes.Internal, 500},
	}
}

func TestConstructorsHaveTheirStatusOnBothWires(t *testing.T) {
	t.Parallel()
	for e, want := range constructed() {
		require.Equal(t, want.code, e.Code, e)
		require.Equal(t, want.status, e.HTTPStatus(), e)
		require.Regexp(t, `^[A-Z][A-Z0-9_]*$`, e.Reason)

		sent := apierr.From(fmt.Errorf("handler: %w", e)).GRPCStatus()
		back := apierr.From(fmt.Errorf("client: %w", status.ErrorProto(sent.Proto())))
		require.Equal(t, want.status, back.HTTPStatus(), "%v over gRPC", e)
		require.Equal(t, e.Problem(), back.Problem())
	}
}

func TestRoundTripOverGRPCIsLossless(t *testing.T) {
	t.Parallel()
	text := rapid.StringMatching(`[ -~é世]{0,30}`)
	rapid.Check(t, func(t *rapid.T) {
		e := &apierr.Error{
			Code:       codes.Code(rapid.IntRange(1, 16).Draw(t, "code")),
			Reason:     rapid.StringMatching(`[A-Z][A-Z0-9_]{0,20}`).Draw(t, "reason"),
			Message:    text.Draw(t, "message"),
			Field:      text.Draw(t, "field"),
			RetryAfter: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "retry")),
		}
		for k, v := range rapid.MapOfN(rapid.StringMatching(`[a-z_]{1,8}`), text, 0, 3).Draw(t, "meta") {
			e = e.With(k, v)
		}
		require.Equal(t, e, apierr.From(e.GRPCStatus().Err()))
	})
}

func TestFromClassifiesOnce(t *testing.T) {
	t.Parallel()
	require.Nil(t, apierr.From(nil))
	require.Equal(t, codes.OK, apierr.Code(nil))
	require.Empty(t, apierr.Reason(nil))

	ours := apierr.Aborted("STALE_EPOCH", "lost")
	require.Same(t, ours, apierr.From(fmt.Errorf("ack: %w", ours)))
	require.ErrorIs(t, fmt.Errorf("ack: %w", ours.With("current", 3)), ours, "facts do not matter to errors.Is")
	require.NotErrorIs(t, ours, apierr.Aborted("OTHER", "lost"))

	require.Equal(t, "CANCELLED", apierr.Reason(fmt.Errorf("x: %w", context.Canceled)))
	require.Equal(t, codes.DeadlineExceeded, apierr.Code(fmt.Errorf("x: %w", context.DeadlineExceeded)))

	require.Equal(t, "NOT_FOUND", apierr.Reason(status.Error(codes.NotFound, "no such thing")))
	require.Equal(t, "no such thing", apierr.From(status.Error(codes.NotFound, "no such thing")).Message, "what blames the request is told")

	down := apierr.From(status.Error(codes.Unavailable, "dial tcp 10.1.2.3:7404: connection refused"))
	require.NotContains(t, down.Message, "10.1.2.3")
	require.Equal(t, time.Second, down.RetryAfter)
	require.ErrorContains(t, down, "10.1.2.3", "the log still has it")
}

type okError struct{}

func (okError) Error() string              { return "claims to be fine" }
func (okError) GRPCStatus() *status.Status { return status.New(codes.OK, "") }

func TestAnErrorIsNeverSuccess(t *testing.T) {
	t.Parallel()
	require.Equal(t, codes.Internal, apierr.Code(okError{}))
}

func TestWithReturnsCopies(t *testing.T) {
	t.Parallel()
	base := apierr.NotFound("QUEUE_NOT_FOUND", "no such queue").With("queue", "a")
	changed := base.With("queue", "b").WithField("queue").WithRetryAfter(time.Second).WithCause(errors.New("x"))
	require.Equal(t, "a", base.Meta["queue"])
	require.Empty(t, base.Field)
	require.Zero(t, base.RetryAfter)
	require.NoError(t, base.Unwrap())
	require.Equal(t, "b", changed.Meta["queue"])
	require.EqualError(t, changed, "QUEUE_NOT_FOUND: queue: no such queue: x")
}

func TestInternalErrorsTellAnIDAndNothingElse(t *testing.T) {
	t.Parallel()
	cause := errors.New("password=hunter2 at 10.0.0.1")
	for _, err := range []error{cause, status.Error(codes.Unknown, cause.Error()), status.Error(codes.DataLoss, cause.Error())} {
		var seen *apierr.Error
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r = r.WithContext(apierr.WithObserver(r.Context(), func(e *apierr.Error) { seen = e }))
		w := httptest.NewRecorder()
		apierr.WriteHTTP(w, r, err)

		require.Equal(t, http.StatusInternalServerError, w.Code)
		require.NotContains(t, w.Body.String(), "hunter2")
		require.NotContains(t, seen.GRPCStatus().Proto().String(), "hunter2")
		require.ErrorContains(t, seen, "hunter2", "the observer logs the cause")
		id := seen.Meta[apierr.MetaErrorID]
		require.NotEmpty(t, id)
		require.Contains(t, w.Body.String(), id, "the id is what the two have in common")
	}
}

func TestWriteHTTP(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	w.Header().Set("Content-Length", "5")
	w.Header().Set("Content-Encoding", "gzip")
	err := apierr.ResourceExhausted("RATE", "at most 5 <requests>", 1200*time.Millisecond).WithField("key").With("limit", 5)
	apierr.WriteHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody), fmt.Errorf("push: %w", err))

	require.Equal(t, 429, w.Code)
	require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	require.Equal(t, "2", w.Header().Get("Retry-After"), "whole seconds, rounded up")
	require.Empty(t, w.Header().Get("Content-Length"))
	require.Empty(t, w.Header().Get("Content-Encoding"))
	require.Contains(t, w.Body.String(), "<requests>", "the text is not escaped for HTML")
	require.JSONEq(t, `{"type":"https://postrider.dev/errors/RATE","title":"Rate","status":429,"code":"RATE","detail":"at most 5 <requests>",
		"field":"key","meta":{"limit":"5"},"retry_after_ms":1200}`, w.Body.String())
}

func TestWriteHTTPEdges(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	apierr.WriteHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodHead, "/", http.NoBody), apierr.Unauthenticated("KEY_MISSING", "no key"))
	require.Equal(t, 401, w.Code)
	require.Equal(t, "Bearer", w.Header().Get("WWW-Authenticate"))
	require.Empty(t, w.Body.String(), "HEAD has no body")

	w = httptest.NewRecorder()
	_, err := io.ReadAll(http.MaxBytesReader(w, io.NopCloser(strings.NewReader("too long")), 3))
	apierr.WriteHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody), fmt.Errorf("read: %w", err))
	require.Equal(t, 413, w.Code)
	require.Contains(t, w.Body.String(), "PAYLOAD_TOO_LARGE")

	w = httptest.NewRecorder()
	apierr.WriteHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody), nil)
	require.Equal(t, 500, w.Code, "an error answer without an error is our mistake")

	w = httptest.NewRecorder()
	apierr.WriteHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody), apierr.NotFound("X", "bad \xff text").With("k", "\xff"))
	require.True(t, json.Valid(w.Body.Bytes()), "text that is not UTF-8 does not break the body")
	require.Equal(t, codes.NotFound, apierr.NotFound("X", "bad \xff text").With("k", "\xff").GRPCStatus().Code())
}

func FuzzFromStatus(f *testing.F) {
	f.Add(uint32(5), "msg", "REASON", "postrider.dev", "http_status", "413", "field", int64(5))
	f.Add(uint32(13), "msg", "", "elsewhere", "http_status", "200", "", int64(-5))
	f.Add(uint32(99), "", "R", "postrider.dev", "http_status", "abc", "", int64(1)<<62)
	f.Fuzz(func(t *testing.T, code uint32, msg, reason, domain, key, value, field string, retry int64) {
		st := status.New(codes.Code(code), msg)
		if d, err := st.WithDetails(
			&errdetails.ErrorInfo{Reason: reason, Domain: domain, Metadata: map[string]string{key: value}},
			&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field}}},
			&errdetails.RetryInfo{RetryDelay: &durationpb.Duration{Seconds: retry, Nanos: int32(retry)}},
		); err == nil {
			st = d
		}
		e := apierr.FromStatus(st)
		if e == nil {
			require.Zero(t, code)
			return
		}
		require.NotEmpty(t, e.Reason)
		require.GreaterOrEqual(t, e.RetryAfter, time.Duration(0))
		require.GreaterOrEqual(t, e.HTTPStatus(), 400, "no error may look like success")
		require.Less(t, e.HTTPStatus(), 600)
	})
}

func ExampleWriteHTTP() {
	handler := func(w http.ResponseWriter, r *http.Request) {
		apierr.WriteHTTP(w, r, apierr.Aborted("STALE_EPOCH", "the lease was lost").With("current", 8))
	}
	w := httptest.NewRecorder()
	handler(w, httptest.NewRequestWithContext(context.Background(), http.MethodPost, "/v1/ack", http.NoBody))
	fmt.Print(w.Code, " ", w.Body.String())
	// Output: 409 {"type":"https://postrider.dev/errors/STALE_EPOCH","title":"Stale epoch","status":409,"code":"STALE_EPOCH","detail":"the lease was lost","meta":{"current":"8"}}
}
