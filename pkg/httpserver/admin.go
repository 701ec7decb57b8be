package httpserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/config"
	"postrider.dev/pkg/internal/callmeta"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/run"
)

// ReasonAdminSecret is given to admin requests without the cluster secret.
const ReasonAdminSecret = "ADMIN_SECRET"

// adminDrain is how long profiles and scrapes are waited for; the admin listener ends after everything else.
const adminDrain = time.Second

// Admin is the listener for operators: /livez, /readyz, /metrics, /debug/pprof and, for what a service adds, /internal.
//
// Probes and metrics are open to who reaches the listener. /internal needs the cluster secret as a bearer token wherever one is set, and pprof does
// off loopback.
type Admin struct {
	*Server

	internal chi.Router
}

// NewAdmin listens on addr, which must be on loopback unless the secret is set. The caller MUST call Run or Close. Run it in an
// earlier layer (run.Layers) than the other servers, so that probes see the drain to its end.
func NewAdmin(ctx context.Context, env run.Env, service, addr string, secret config.Secret, ready *Readiness) (*Admin, error) {
	if err := config.NonLoopbackNeeds("addr", addr, "the cluster secret", secret); err != nil {
		return nil, fmt.Errorf("admin server: %w", err)
	}
	s, err := New(ctx, env, Options{Service: service, Listener: "admin", Addr: addr, DrainTimeout: adminDrain})
	if err != nil {
		return nil, err
	}
	a := &Admin{Server: s}
	r := s.Router()
	if config.IsLoopback(addr) && !strings.HasPrefix(addr, memnet.Prefix) {
		r.Use(localHost)
	}
	r.Get("/livez", Live)
	r.Get("/readyz", ready.Handler(true))
	r.Method(http.MethodGet, "/metrics", promhttp.HandlerFor(env.Metrics, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, // one broken collector must not hide the others
		Registry:      env.Metrics,
	}))
	r.Route("/debug/pprof", func(r chi.Router) {
		if !config.IsLoopback(addr) {
			r.Use(needSecret(secret))
		}
		r.Get("/", pprof.Index)
		r.Get("/cmdline", pprof.Cmdline)
		r.Get("/profile", pprof.Profile)
		r.Get("/symbol", pprof.Symbol)
		r.Post("/symbol", pprof.Symbol)
		r.Get("/trace", pprof.Trace)
		r.Get("/{profile}", pprof.Index)
	})
	r.Route("/internal", func(r chi.Router) {
		if secret.IsSet() {
			r.Use(needSecret(secret))
		}
		a.internal = r
	})
	return a, nil
}

// ReasonHost is given to admin requests for another host than this machine.
const ReasonHost = "HOST_NOT_LOCAL"

// localHost refuses requests whose Host is a name of somewhere else: a web page that points its own name at loopback could read profiles otherwise.
func localHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !config.IsLoopback(r.Host) {
			apierr.WriteHTTP(w, r, apierr.PermissionDenied(ReasonHost, "this listener serves its own machine only: ask for it by a loopback address"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Internal returns the router of what lies under /internal.
func (a *Admin) Internal() chi.Router { return a.internal }

// Run serves until ctx ends. A profile that is cut off then is no failure.
func (a *Admin) Run(ctx context.Context) error {
	if err := a.Server.Run(ctx); err != nil && !errors.Is(err, ErrDrainTimeout) {
		return err
	}
	return nil
}

// needSecret refuses requests without "Authorization: Bearer <secret>".
func needSecret(secret config.Secret) func(http.Handler) http.Handler {
	v := callmeta.NewVerifier(secret.Reveal())
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			if !ok || !v.Match(given) {
				apierr.WriteHTTP(w, r, apierr.Unauthenticated(ReasonAdminSecret, "the cluster secret is needed as a bearer token"))
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}
