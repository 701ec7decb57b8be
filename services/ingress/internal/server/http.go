package server

import (
	"maps"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/httpserver"
	"postrider.dev/services/ingress/internal/domain"
)

// mount puts every REST route of the policy table on the router, and nothing else. Hot verbs, configuration and documents have handlers of ours; the
// rest goes through the gateway.
func (s *Server) mount(r chi.Router) {
	own := map[string]http.HandlerFunc{
		"POST /v1/queues/{queue}/messages": s.restPush,
		"POST /v1/queues/{queue}/pop":      s.restPop,
		"POST /v1/queues/{queue}/ack":      s.restAck,
		"POST /v1/queues/{queue}/renew":    s.restRenew,
		"POST /v1/queues/{queue}/release":  s.restRelease,
		"POST /v1/transactions":            s.restTransact,
		"PATCH /v1/queues/{queue}":         s.restConfigure,
		"GET /v1/queues/{queue}/subscribe": s.restSubscribe,
		"GET " + sharedStatePath:           s.sharedState,
		"GET /livez":                       httpserver.Live,
		"GET /readyz":                      s.ready,
		"GET /openapi.json":                s.openapi,
		"GET /docs":                        s.docs,
	}
	maps.Copy(own, s.reads())
	r.Use(s.patient, rawPath, s.requestID, s.cors())
	r.NotFound(notFound)
	r.MethodNotAllowed(methodNotAllowed(r))
	for _, p := range s.policies {
		switch p.Via {
		case domain.ViaHandler:
			r.Method(p.Method, p.Pattern, s.access.route(p, soundQuery(p, own[p.Method+" "+p.Pattern])))
		case domain.ViaGateway:
			r.Method(p.Method, p.Pattern, s.access.route(p, soundQuery(p, s.viaGateway(p))))
		case domain.ViaNone:
		}
	}
}

// rawPath makes routing see the path as it was sent, so that an escaped slash belongs to a name and parameters are always unescaped exactly once.
func rawPath(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.RawPath = r.URL.EscapedPath()
		next.ServeHTTP(w, r)
	})
}

// soundQuery refuses a query that cannot be read, of which net/http would drop the part it does not understand, and any query where the fields are in the body:
// a client that misplaced a field is told.
func soundQuery(p domain.Policy, next http.HandlerFunc) http.HandlerFunc {
	if p.Area == domain.AreaMeta {
		return next
	}
	takesBody := p.Method != http.MethodGet && p.Method != http.MethodDelete
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.RawQuery != "" {
			if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
				apierr.WriteHTTP(w, r, apierr.InvalidArgument("INVALID_QUERY", "", "the query is malformed: an escape is %XX, and & separates parameters"))
				return
			}
			if takesBody {
				apierr.WriteHTTP(w, r, apierr.InvalidArgument("UNEXPECTED_QUERY", "", "this request takes its fields in the body"))
				return
			}
		}
		next(w, r)
	}
}

// param returns a path parameter as the client meant it.
func param(r *http.Request, name string) string {
	raw := chi.URLParam(r, name)
	text, err := url.PathUnescape(raw)
	if err != nil { // net/http has parsed the path, so every escape in it is good
		return raw
	}
	return text
}

func notFound(w http.ResponseWriter, r *http.Request) {
	apierr.WriteHTTP(w, r, apierr.RouteNotFound("no route has this path"))
}

// methodNotAllowed answers 405 and names the methods that the path has.
func methodNotAllowed(routes chi.Routes) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var allowed []string
		for _, m := range []string{http.MethodDelete, http.MethodGet, http.MethodPatch, http.MethodPost, http.MethodPut} {
			if routes.Match(chi.NewRouteContext(), m, r.URL.RawPath) {
				allowed = append(allowed, m)
			}
		}
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		apierr.WriteHTTP(w, r, apierr.MethodNotAllowed("this path has other methods: "+strings.Join(allowed, ", ")))
	}
}
