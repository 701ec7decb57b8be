// Package httpserver is the HTTP server of every service: one set of limits, one way to report errors, one drain, and the admin listener.
//
// New listens at once, so the address is known before the service is built; Run serves and, when its context ends, drains in the order of package
// drain: OnDrain, DrainDelay, Draining closes, Shutdown, and at DrainTimeout Close. Handlers that wait (long polls, event streams, WebSockets) MUST
// watch Draining and return, or they hold the process up.
//
// Routes go on Router, a chi router that already traces, counts, recovers, limits the body, and answers unknown routes with a problem. Errors are
// written by apierr.WriteHTTP; the server logs them.
package httpserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/go-chi/chi/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/internal/drain"
	"postrider.dev/pkg/obs"
	"postrider.dev/pkg/run"
)

// ErrDrainTimeout is matched by the error of Run when requests had to be cut off.
var ErrDrainTimeout = drain.ErrTimeout

// Server is an HTTP server that listens. Use New; add routes before Run.
type Server struct {
	opts     Options
	log      *zap.Logger // sampled
	clk      clock.Clock
	metrics  metrics
	router   *chi.Mux
	http     *http.Server
	listener net.Listener
	draining chan struct{}
	goAway   func() // closes draining, once
	done     chan struct{}
	finish   func() // closes done, once
	running  sync.Once
	inflight drain.Inflight
	fresh    fresh
}

// New listens on opts.Addr. The caller MUST call Run or Close.
func New(ctx context.Context, env run.Env, opts Options) (*Server, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("http server: %w", err)
	}
	m, err := newMetrics(env.Metrics, opts)
	if err != nil {
		return nil, fmt.Errorf("http server: %w", err)
	}
	log := obs.Sampled(env.Log)
	errorLog, err := zap.NewStdLogAt(log.With(zap.String(obs.KeyPart, opts.Listener)), zapcore.DebugLevel)
	if err != nil {
		return nil, fmt.Errorf("http server: %w", err)
	}
	s := &Server{
		opts: opts, log: log, clk: env.Clock, metrics: m,
		draining: make(chan struct{}), done: make(chan struct{}),
	}
	s.goAway = sync.OnceFunc(func() { close(s.draining) })
	s.finish = sync.OnceFunc(func() { close(s.done) })
	s.router = s.newRouter(env.Traces)
	s.http = &http.Server{
		Handler:           s.router,
		ReadHeaderTimeout: readHeaderTimeout, // no ReadTimeout: it would end long polls; ReadBody has its own
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          errorLog,
		ConnState:         s.fresh.track,
	}
	if s.listener, err = env.Listen(ctx, opts.Addr); err != nil {
		return nil, fmt.Errorf("http server: %w", err)
	}
	return s, nil
}

// Router returns the router that routes are added to. It MUST NOT be changed after Run.
func (s *Server) Router() chi.Router { return s.router }

// Addr returns the address that the server listens on, with the port that was chosen if none was asked for.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Draining is closed when waiting handlers must return.
func (s *Server) Draining() <-chan struct{} { return s.draining }

// Done is closed when the server has ended: no handler runs any more, or none was waited for any longer.
func (s *Server) Done() <-chan struct{} { return s.done }

// Run serves until ctx ends and then drains. It returns nil when every request in flight was finished. It MUST be called at most once.
func (s *Server) Run(ctx context.Context) error {
	err := errors.New("http server: Run was called twice")
	s.running.Do(func() { err = s.run(ctx) })
	return err
}

func (s *Server) run(ctx context.Context) error {
	defer s.finish()
	requests, cancel := context.WithCancel(context.WithoutCancel(ctx)) // requests outlive ctx: they are drained
	defer cancel()
	s.http.BaseContext = func(net.Listener) context.Context { return requests }
	s.log.Info("serving http", zap.String(obs.KeyPart, s.opts.Listener), obs.Addr(s.Addr().String()))
	err := drain.Run(ctx, s.clk, s.opts.DrainDelay, s.opts.DrainTimeout, drain.Server{
		Serve:    s.serve,
		NotReady: s.notReady,
		GoAway:   s.goAway,
		Shutdown: s.shutdown,
		Close: func() {
			_ = s.http.Close() // before cancel: a handler that gives up must not answer, or it would seem to have succeeded
			cancel()           // for handlers of hijacked connections
		},
		Inflight: &s.inflight,
	})
	if err != nil {
		return fmt.Errorf("http %s: %w", s.opts.Listener, err)
	}
	return nil
}

// Close frees the address of a server whose Run was never called; after Run it does nothing more.
func (s *Server) Close() {
	s.goAway()
	_ = s.http.Close()
	_ = s.listener.Close() // Serve has closed it already if it ever ran
	s.finish()
}

func (s *Server) serve() error {
	err := s.http.Serve(s.listener)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (s *Server) notReady() {
	if s.opts.OnDrain != nil {
		s.opts.OnDrain()
	}
}

// shutdown waits for connections first and then for handlers, since Shutdown does not know those that hijacked theirs.
func (s *Server) shutdown(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.http.Shutdown(ctx) }() // closes the listener first; awaited on both paths
	var err error
	select {
	case err = <-done:
	case <-clock.Real{}.After(freshGrace): // sockets know real time alone
		s.fresh.close()
		err = <-done
	}
	if err != nil {
		return err
	}
	return s.inflight.Wait(ctx)
}
