package httpserver

import (
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/obs"
	"postrider.dev/pkg/run"
)

func (s *Server) newRouter(traces trace.TracerProvider) *chi.Mux {
	r := chi.NewRouter()
	r.Use(tracing(traces), s.observe, middleware.SetHeader("X-Content-Type-Options", "nosniff"), s.limitBody)
	r.NotFound(func(w http.ResponseWriter, r *http.Request) {
		apierr.WriteHTTP(w, r, apierr.RouteNotFound("no route has this path"))
	})
	r.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", strings.Join(allowed(r), ", "))
		apierr.WriteHTTP(w, r, apierr.MethodNotAllowed("this route has other methods; see the Allow header"))
	})
	return r
}

// allowed returns the methods that the path of r has; chi tells them to its own handler alone.
func allowed(r *http.Request) []string {
	var methods []string
	for _, m := range knownMethods() {
		if chi.RouteContext(r.Context()).Routes.Match(chi.NewRouteContext(), m, r.URL.Path) {
			methods = append(methods, m)
		}
	}
	return methods
}

// tracing takes the caller's trace context and, where spans are recorded, makes one for the request.
func tracing(traces trace.TracerProvider) func(http.Handler) http.Handler {
	propagator := obs.Propagator()
	if obs.Recording(traces) {
		return otelhttp.NewMiddleware("http", otelhttp.WithTracerProvider(traces), otelhttp.WithPropagators(propagator))
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx := propagator.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
			next.ServeHTTP(w, r.WithContext(ctx))
		})
	}
}

// observe counts and times the request under its route pattern, logs its failure, and turns a panic into an answer.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.inflight.Add()
		defer s.inflight.Done()
		s.metrics.inFlight.Inc()
		defer s.metrics.inFlight.Dec()
		start := s.clk.Now()
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		var r2 *http.Request
		r2 = r.WithContext(apierr.WithObserver(r.Context(), func(e *apierr.Error) { s.failed(r2, e, start) }))
		defer func() {
			aborted := s.recovered(recover(), ww, r2)
			s.finished(r2, ww.Status(), start)
			if aborted {
				panic(http.ErrAbortHandler) // net/http closes the connection, so the client sees no complete answer
			}
		}()
		next.ServeHTTP(ww, r2)
	})
}

// recovered answers for a handler that panicked. It returns true if there is no honest answer left: part of one was sent, or the handler gave up
// by http.ErrAbortHandler.
func (s *Server) recovered(v any, w middleware.WrapResponseWriter, r *http.Request) (abort bool) {
	switch v {
	case nil:
		return false
	case http.ErrAbortHandler: // a panic value, compared as net/http compares it
		return true
	}
	e := apierr.Internal(fmt.Errorf("%w: %v\n%s", run.ErrPanic, v, debug.Stack()))
	if w.Status() != 0 {
		s.failed(r, e, s.clk.Now())
		return true
	}
	apierr.WriteHTTP(w, r, e)
	return false
}

func (s *Server) failed(r *http.Request, e *apierr.Error, start time.Time) {
	obs.LogFailure(r.Context(), s.log, e,
		zap.String(obs.KeyMethod, r.Method), zap.String(obs.KeyRoute, route(r)), zap.Int(obs.KeyStatus, e.HTTPStatus()),
		obs.Duration(s.clk.Since(start)))
}

func (s *Server) finished(r *http.Request, status int, start time.Time) {
	if status == 0 {
		status = http.StatusOK // what net/http sends for a handler that wrote nothing
	}
	pattern := route(r)
	s.metrics.observe(r.Method, pattern, status, s.clk.Since(start))
	if span := trace.SpanFromContext(r.Context()); span.IsRecording() {
		span.SetName(r.Method + " " + pattern)
		span.SetAttributes(attribute.String("http.route", pattern))
	}
}

// route returns the pattern that matched, never the path: paths are without number and hold what clients call their things.
func route(r *http.Request) string {
	if ctx := chi.RouteContext(r.Context()); ctx != nil {
		if p := ctx.RoutePattern(); p != "" {
			return p
		}
	}
	return "none"
}

// limitBody refuses a body that is announced as too large and stops reading one that turns out to be.
func (s *Server) limitBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > s.opts.MaxBodyBytes {
			apierr.WriteHTTP(w, r, tooLarge(s.opts.MaxBodyBytes))
			return
		}
		if r.Body != nil && r.Body != http.NoBody {
			r.Body = http.MaxBytesReader(w, r.Body, s.opts.MaxBodyBytes)
		}
		next.ServeHTTP(w, r)
	})
}
