package httpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"postrider.dev/pkg/run"
)

// checkTimeout bounds one check: a probe must be answered before its prober gives up.
const checkTimeout = 2 * time.Second

// Status is how able a node, or one thing it needs, is.
type Status string

// The states. A degraded node serves with less (a spool instead of the database) and is ready: taking it out of rotation would make it worse.
const (
	Ready    Status = "ready"
	Degraded Status = "degraded"
	NotReady Status = "not ready"
)

// DegradedError is what a check returns for a thing that works with less.
type DegradedError struct{ Reason string }

// Error returns the reason.
func (e *DegradedError) Error() string { return e.Reason }

// Check says whether one thing the node needs is able: nil, a *DegradedError, or any other error for not able. It MUST NOT depend on peers: a
// node that judged itself by others would spread their outage.
type Check func(ctx context.Context) error

// OnlyDegrades makes a failing check no reason to be taken out: the node works with less.
func OnlyDegrades(check Check) Check {
	return func(ctx context.Context) error {
		if err := check(ctx); err != nil {
			return &DegradedError{Reason: err.Error()}
		}
		return nil
	}
}

// Readiness knows whether this node can do its job now. It is safe for concurrent use.
type Readiness struct {
	flights singleflight.Group // so that many probers cost one check, and a stuck check one goroutine

	mu       sync.Mutex // guards all below
	names    []string
	checks   map[string]Check
	draining bool
}

// NewReadiness returns a Readiness without checks, which is ready.
func NewReadiness() *Readiness {
	return &Readiness{checks: make(map[string]Check)}
}

// Add registers a check; a check of the same name is replaced.
func (r *Readiness) Add(name string, check Check) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.checks[name]; !ok {
		r.names = append(r.names, name)
	}
	r.checks[name] = check
}

// Drain makes the node not ready for good. It is the OnDrain of every server.
func (r *Readiness) Drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draining = true
}

// Result is the outcome of one check.
type Result struct {
	Status Status `json:"status"`
	Reason string `json:"reason,omitempty"`
}

// Report is the body of /readyz: the worst status of all checks, and each check's own.
type Report struct {
	Status Status            `json:"status"`
	Checks map[string]Result `json:"checks,omitempty"`
}

// Report runs every check, side by side and each for at most 2 s.
func (r *Readiness) Report(ctx context.Context) Report {
	r.mu.Lock()
	names, draining := append([]string(nil), r.names...), r.draining
	checks := make([]Check, len(names))
	for i, name := range names {
		checks[i] = r.checks[name]
	}
	r.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	answers := make([]<-chan singleflight.Result, len(names))
	for i, name := range names {
		answers[i] = r.flights.DoChan(name, func() (any, error) { return nil, guard(context.WithoutCancel(ctx), checks[i]) })
	}
	report := Report{Status: Ready, Checks: make(map[string]Result, len(names)+1)}
	for i, name := range names {
		report.add(name, await(ctx, answers[i]))
	}
	if draining {
		report.add("draining", errors.New("the process is ending"))
	}
	return report
}

func await(ctx context.Context, answer <-chan singleflight.Result) error {
	select {
	case a := <-answer:
		return a.Err
	case <-ctx.Done():
	}
	select {
	case a := <-answer: // it was there while another check used the time up
		return a.Err
	default:
		return fmt.Errorf("no answer: %w", ctx.Err())
	}
}

func guard(ctx context.Context, check Check) (err error) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%w: %v", run.ErrPanic, v)
		}
	}()
	return check(ctx)
}

func (rep *Report) add(name string, err error) {
	switch {
	case err == nil:
		rep.Checks[name] = Result{Status: Ready}
		return
	case isDegraded(err):
		rep.Checks[name] = Result{Status: Degraded, Reason: err.Error()}
		if rep.Status == Ready {
			rep.Status = Degraded
		}
	default:
		rep.Checks[name] = Result{Status: NotReady, Reason: err.Error()}
		rep.Status = NotReady
	}
}

func isDegraded(err error) bool {
	_, ok := errors.AsType[*DegradedError](err)
	return ok
}

// Handler answers 200 for ready and degraded and 503 for not ready. The body says which; with reasons, it names the checks that are not ready, and with
// ?verbose all of them. Reasons may name hosts and belong on the admin listener.
func (r *Readiness) Handler(reasons bool) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		report := r.Report(req.Context())
		switch {
		case !reasons:
			report.Checks = nil
		case !req.URL.Query().Has("verbose"):
			for name, result := range report.Checks {
				if result.Status == Ready {
					delete(report.Checks, name)
				}
			}
		}
		status := http.StatusOK
		if report.Status == NotReady {
			status = http.StatusServiceUnavailable
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(report) // a prober that left cannot be told more
	}
}

// Live answers that the process answers, and looks at nothing else: what restarting cannot mend must not lead to restarts.
func Live(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write([]byte("ok\n"))
}
