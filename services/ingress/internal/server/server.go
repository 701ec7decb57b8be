// Package server is the public surface: REST on chi and gRPC, both over the same verbs, the same rules and the same policy table.
package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"postrider.dev/pkg/clock"
	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine/answers"
)

// Config of the surface.
type Config struct {
	Timeout      time.Duration // of a request, on top of what a pop waits
	MaxBodyBytes int64
	CORSOrigins  []string

	AnswerTimeout time.Duration // how long a client may leave an answer unread, beside a second for each MiB
}

// Needs is what the surface stands on.
type Needs struct {
	Exchange   Exchange
	Subs       Subscriptions
	Keys       Keys // nil: authentication is off
	Store      AdminStore
	KeyChanged func(domain.KeyID) // told after a key was made or revoked
	ModeSet    func(mode string)  // told after a mode of the fleet was set
	Modes      Modes
	Mesh       func(context.Context) *adminv1.Mesh // how the host is joined to others
	Ready      http.HandlerFunc                    // answers /readyz
	Draining   <-chan struct{}                     // closed when pops must not wait any longer
	Answers    *answers.Budget                     // for answers with messages or dead letters
	Clock      clock.Clock
	Log        *zap.Logger
}

// Server is the surface. Build it with New, then Register, Gateway and Mount.
type Server struct {
	cfg      Config
	policies []domain.Policy
	access   *access
	verbs    *verbs
	queue    *queueService
	admin    *adminService
	gateway  *runtime.ServeMux
	ready    http.HandlerFunc
	clk      clock.Clock
	log      *zap.Logger
	bodies   *semaphore.Weighted // bytes of bodies in memory
	spec     []byte
	page     []byte
	unread   sync.WaitGroup // watchers of pending answers, which end with their connections
}

// New returns a surface that serves nothing yet.
func New(cfg Config, n Needs) (*Server, error) {
	spec, err := openapiDocument(domain.Policies())
	if err != nil {
		return nil, err
	}
	page, err := docsPage(spec)
	if err != nil {
		return nil, err
	}
	r := newRules()
	v := &verbs{rules: r, exchange: n.Exchange, subs: n.Subs, patience: cfg.AnswerTimeout, modes: n.Modes, timeout: cfg.Timeout, clk: n.Clock, draining: n.Draining, answers: n.Answers}
	return &Server{
		cfg: cfg, policies: domain.Policies(), access: newAccess(n.Keys, domain.Policies()), verbs: v,
		queue: &queueService{verbs: v},
		admin: &adminService{
			rules: r, store: n.Store, clk: n.Clock, timeout: cfg.Timeout, keyChanged: n.KeyChanged, modeSet: n.ModeSet, spools: n.Exchange.Spools, mesh: n.Mesh,
		},
		bodies: semaphore.NewWeighted(bodiesAtOnce * cfg.MaxBodyBytes), ready: n.Ready, clk: n.Clock, log: n.Log, spec: spec, page: page,
	}, nil
}

// Unary and Stream are the interceptors that authenticate and apply the policy table; the gRPC server MUST run them.
func (s *Server) Unary() []grpc.UnaryServerInterceptor {
	return []grpc.UnaryServerInterceptor{s.access.Unary, s.pend}
}

// Stream is the interceptor of streams.
func (s *Server) Stream() grpc.StreamServerInterceptor { return s.access.Stream }

// ServerOptions are what the gRPC server needs beside the interceptors.
func (s *Server) ServerOptions() []grpc.ServerOption {
	return pendingOptions()
}

// Wait returns when nothing watches answers any more. It is called after the gRPC server has ended, and its connections with it.
func (s *Server) Wait() { s.unread.Wait() }

// Register adds the gRPC services.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	queuev1.RegisterQueueServiceServer(r, s.queue)
	adminv1.RegisterAdminServiceServer(r, s.admin)
}

// Mount adds the REST routes; conn leads to the gRPC server that Register was called with.
func (s *Server) Mount(ctx context.Context, r chi.Router, conn *grpc.ClientConn) error {
	gateway, err := newGateway(ctx, conn)
	if err != nil {
		return err
	}
	s.gateway = gateway
	s.mount(r)
	return nil
}
