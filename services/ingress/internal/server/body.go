package server

import (
	"context"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/httpserver"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine"
	"postrider.dev/services/ingress/internal/server/wire"
)

// body reads the JSON body of a request, within the limit.
func (s *Server) body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if err := wantJSON(r); err != nil {
		return nil, err
	}
	return httpserver.ReadBody(w, r, s.cfg.MaxBodyBytes)
}

// NoBodyLimit is what the HTTP server in front must be given as its own limit: the surface has one, and says more about what is too large.
const NoBodyLimit = 1 << 40

// bodiesAtOnce bounds the bytes of all bodies that are in memory, in units of the largest body.
const bodiesAtOnce = 8

// holdBody makes a request wait until its body fits beside those that are in memory; one of unknown length counts as the largest.
func (s *Server) holdBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size := r.ContentLength
		if size > s.cfg.MaxBodyBytes {
			apierr.WriteHTTP(w, r, apierr.PayloadTooLarge("", fmt.Sprintf("the body has %d bytes, at most %d are allowed", size, s.cfg.MaxBodyBytes)).
				With("size", size).With("limit", s.cfg.MaxBodyBytes))
			return
		}
		if size < 0 {
			size = s.cfg.MaxBodyBytes
		}
		if size > 0 {
			ctx, cancel := context.WithTimeout(r.Context(), s.cfg.Timeout)
			err := s.bodies.Acquire(ctx, size)
			cancel()
			if err != nil {
				apierr.WriteHTTP(w, r, wireError(fmt.Errorf("%w: bodies: %w", engine.ErrOverloaded, err)))
				return
			}
			defer s.bodies.Release(size)
		}
		next.ServeHTTP(w, r)
	})
}

// wantJSON refuses a body of another content type. A request without a body needs none.
func wantJSON(r *http.Request) error {
	ct := r.Header.Get("Content-Type")
	if ct == "" && r.ContentLength == 0 {
		return nil
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return apierr.UnsupportedMediaType("the body must not be compressed")
	}
	if ct == "" {
		return apierr.UnsupportedMediaType("the body needs a content type: application/json")
	}
	media, params, err := mime.ParseMediaType(ct)
	charset := strings.ToLower(params["charset"])
	if err != nil || media != domain.MediaJSON || charset != "" && charset != "utf-8" {
		return apierr.UnsupportedMediaType("the body must be application/json in UTF-8")
	}
	return nil
}

// read decodes the body into m and sets its queue from the path.
func (s *Server) read(w http.ResponseWriter, r *http.Request, m proto.Message, d wire.Decoder) error {
	body, err := s.body(w, r)
	if err != nil {
		return err
	}
	d.Bound = append(d.Bound, "queue")
	return wireError(d.Decode(body, m))
}

// writeJSON answers with a message. It reports whether the answer was written; a client that left cannot be told, but what it leased can be given back.
func writeJSON(w http.ResponseWriter, status int, m proto.Message) bool {
	return writeBytes(w, status, wire.Append(make([]byte, 0, 512), m))
}

func writeBytes(w http.ResponseWriter, status int, body []byte) bool {
	h := w.Header()
	h.Set("Content-Type", domain.MediaJSON)
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, err := w.Write(body) //nolint:gosec // G705: JSON with nosniff, never HTML.
	return err == nil
}
