package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/httpserver"
	"postrider.dev/pkg/run"
)

// readyEvery is the pause between two looks at services that are starting.
const readyEvery = 20 * time.Millisecond

// dialPatience is how long a request waits for a service that does not listen yet.
const dialPatience = 2 * time.Second

// maxReport bounds the answer of a service's /readyz.
const maxReport = 1 << 20

// admin is the one admin listener of the process: health of all services together, the shared metrics, and each service's own routes under
// /internal/NAME/.
type admin struct {
	*httpserver.Admin

	env      run.Env
	client   *http.Client
	services []string
	ready    func()
}

func newAdmin(ctx context.Context, cfg Config, env run.Env, ready func()) (*admin, error) {
	a := &admin{env: env, ready: ready, services: []string{"ingress", "dispatcher", "scheduler", "audit", "meshhint"}}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			name, _, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, fmt.Errorf("address of a service: %w", err)
			}
			ctx, cancel := context.WithTimeout(ctx, dialPatience) // in memory, dialling waits until the service listens
			defer cancel()
			return env.Dial(ctx, memAdmin+name)
		},
	}
	a.client = &http.Client{Transport: transport, Timeout: 5 * time.Second}
	readiness := httpserver.NewReadiness()
	for _, name := range a.services {
		readiness.Add(name, func(ctx context.Context) error { return a.check(ctx, name) })
	}
	server, err := httpserver.NewAdmin(ctx, env, "stack", cfg.AdminAddr, cfg.Meshhint.ClusterSecret, readiness)
	if err != nil {
		return nil, err
	}
	a.Admin = server
	server.Internal().Handle("/{service}/*", a.proxy(transport))
	server.Internal().Handle("/api/*", a.proxyTo(transport, "meshhint", "/internal/api/")) // what monitors of other brokers ask for
	return a, nil
}

// proxy passes /internal/NAME/path on to the service's /internal/path. The secret that opened this listener opens that one too.
func (a *admin) proxy(transport http.RoundTripper) http.Handler {
	handlers := make(map[string]http.Handler, len(a.services))
	for _, name := range a.services {
		handlers[name] = a.proxyTo(transport, name, "/internal/")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler := handlers[chi.URLParam(r, "service")]
		if handler == nil {
			apierr.WriteHTTP(w, r, apierr.RouteNotFound("the services are "+strings.Join(a.services, ", ")))
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// proxyTo passes what matched a pattern's * on to a service, below a path of its own.
func (a *admin) proxyTo(transport http.RoundTripper, name, below string) http.Handler {
	return &httputil.ReverseProxy{
		Transport: transport,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			apierr.WriteHTTP(w, r, apierr.Unavailable("SERVICE_AWAY", "the service does not answer: "+err.Error(), time.Second))
		},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme = "http"
			r.Out.URL.Host = name
			r.Out.URL.Path = below + chi.URLParam(r.In, "*")
		},
	}
}

// check asks one service's /readyz.
func (a *admin) check(ctx context.Context, name string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+name+"/readyz?verbose", nil)
	if err != nil {
		return fmt.Errorf("ask %s: %w", name, err)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return fmt.Errorf("ask %s: %w", name, err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	var report httpserver.Report
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, maxReport)).Decode(&report); err != nil {
		return fmt.Errorf("ask %s: %w", name, err)
	}
	if report.Status == httpserver.Ready {
		return nil
	}
	reasons := []string{string(report.Status)}
	for _, check := range slices.Sorted(maps.Keys(report.Checks)) {
		if r := report.Checks[check]; r.Status != httpserver.Ready {
			reasons = append(reasons, check+": "+r.Reason)
		}
	}
	reason := strings.Join(reasons, "; ")
	if report.Status == httpserver.Degraded {
		return &httpserver.DegradedError{Reason: reason}
	}
	return fmt.Errorf("%s is %s", name, reason)
}

// awaitReady calls ready once all services are, and ends with ctx.
func (a *admin) awaitReady(ctx context.Context) error {
	for _, name := range a.services {
		for {
			err := a.check(ctx, name)
			if err == nil {
				break
			}
			logReady(a.env.Log, name, err.Error())
			if a.env.Clock.Sleep(ctx, readyEvery) != nil {
				return nil //nolint:nilerr // it was told to end
			}
		}
	}
	if a.ready != nil {
		a.ready()
	}
	<-ctx.Done()
	return nil
}
