package grpcserver

import (
	"context"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/internal/callmeta"
	"postrider.dev/pkg/obs"
	"postrider.dev/pkg/run"
	"postrider.dev/pkg/tenant"
)

// Reasons this package gives.
const (
	ReasonPeerUnknown  = "PEER_UNKNOWN"   // the cluster secret is missing or wrong
	ReasonPeerMetadata = "PEER_METADATA"  // a peer sent tenant, actor or role that cannot be read
	healthPrefix       = "/grpc.health.v" // probes have no secret, and health tells them nothing else
)

// unary surrounds every unary call.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
	start := s.begin()
	called := ctx
	defer func() { err = s.end(called, info.FullMethod, start, err, recover()) }()
	if ctx, err = s.admit(ctx, info.FullMethod); err != nil {
		return nil, err
	}
	called = ctx
	ctx, cancel := context.WithTimeout(ctx, s.opts.MaxDeadline)
	defer cancel()
	return handle(ctx, req)
}

// stream surrounds every streaming call. Streams have no longest duration; they end by Draining.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	start := s.begin()
	ctx := ss.Context()
	defer func() { err = s.end(ctx, info.FullMethod, start, err, recover()) }()
	admitted, err := s.admit(ctx, info.FullMethod)
	if err != nil {
		return err
	}
	ctx = admitted
	return handle(srv, admittedStream{ss, ctx})
}

type admittedStream struct {
	grpc.ServerStream

	ctx context.Context //nolint:containedctx // a stream is the one place where gRPC keeps a context.
}

func (s admittedStream) Context() context.Context { return s.ctx }

func (s *Server) begin() time.Time {
	s.inflight.Add()
	s.metrics.inFlight.Inc()
	return s.clk.Now()
}

// end turns the outcome of a call, an error or a panic, into what the caller may see, after logging and counting it.
func (s *Server) end(ctx context.Context, method string, start time.Time, err error, panicked any) error {
	defer s.inflight.Done()
	if panicked != nil {
		err = apierr.Internal(fmt.Errorf("%w: %v\n%s", run.ErrPanic, panicked, debug.Stack()))
	}
	took := s.clk.Since(start)
	s.metrics.inFlight.Dec()
	e := apierr.From(err)
	s.metrics.observe(method, e, took)
	if e == nil {
		return nil
	}
	obs.LogFailure(ctx, s.log, e, zap.String(obs.KeyMethod, method), obs.Duration(took))
	return e.GRPCStatus().Err()
}

// admit authenticates the peer and puts the Caller it speaks for into the context. On a public listener it removes what the peer had no right to
// say.
func (s *Server) admit(ctx context.Context, method string) (context.Context, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if s.propagator != nil {
		ctx = s.propagator.Extract(ctx, callmeta.Carrier(md))
	}
	if s.opts.Public {
		return metadata.NewIncomingContext(ctx, callmeta.Strip(md)), nil
	}
	if strings.HasPrefix(method, healthPrefix) {
		return ctx, nil
	}
	if s.opts.ClusterSecret.IsSet() && !s.secret.MatchMD(md) {
		return ctx, apierr.Unauthenticated(ReasonPeerUnknown, "the cluster secret is missing or wrong")
	}
	caller, ok, err := callmeta.Caller(md)
	switch {
	case err != nil:
		return ctx, apierr.InvalidArgument(ReasonPeerMetadata, "", "tenant, actor or role cannot be read").WithCause(err)
	case ok:
		ctx = tenant.NewContext(ctx, caller)
	}
	return metadata.NewIncomingContext(ctx, callmeta.Strip(md)), nil // the secret goes no further
}
