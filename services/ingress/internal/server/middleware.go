package server

import (
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/go-chi/cors"
	"github.com/google/uuid"
	"go.uber.org/zap"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/obs"
)

const (
	requestIDHeader   = "X-Request-Id"
	maxRequestIDBytes = 128
	drainingHeader    = "Postrider-Draining"
	replayedHeader    = idempotency.ReplayedHeader
	corsMaxAge        = 600 // seconds
)

// requestID gives every request an id, the client's where it sent a sane one, tells it in the answer, and logs the request with it at debug.
func (s *Server) requestID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(requestIDHeader)
		if !saneID(id) {
			id = uuid.NewString()
		}
		w.Header().Set(requestIDHeader, id)
		if !s.log.Core().Enabled(zap.DebugLevel) {
			next.ServeHTTP(w, r)
			return
		}
		start := s.clk.Now()
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		next.ServeHTTP(ww, r)
		s.log.Debug("request", zap.String(obs.KeyRequest, id), zap.String(obs.KeyMethod, r.Method), zap.String(obs.KeyRoute, chi.RouteContext(r.Context()).RoutePattern()),
			zap.Int(obs.KeyStatus, ww.Status()), zap.Int(obs.KeyBytes, ww.BytesWritten()), obs.Duration(s.clk.Since(start)))
	})
}

func saneID(id string) bool {
	if id == "" || len(id) > maxRequestIDBytes {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}

// cors lets browsers of the configured origins in; without any there is no CORS at all. Keys travel in headers, so credentials are never allowed.
func (s *Server) cors() func(http.Handler) http.Handler {
	if len(s.cfg.CORSOrigins) == 0 {
		return func(next http.Handler) http.Handler { return next }
	}
	return cors.Handler(cors.Options{
		AllowedOrigins: s.cfg.CORSOrigins,
		AllowedMethods: []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete},
		AllowedHeaders: []string{"Authorization", "X-Api-Key", "Content-Type", idempotency.Header, "traceparent", requestIDHeader, lastEventID},
		ExposedHeaders: []string{requestIDHeader, drainingHeader, maintenanceHeader, reasonHeader, replayedHeader, "Retry-After"},
		MaxAge:         corsMaxAge,
	})
}
