// Package grpcclient makes the connections on which services call one another.
//
// A connection carries the cluster secret and, for each call, the tenant.Caller of its context, so that the callee acts for the same tenant and actor.
// It connects when first used, and again after a loss with a short, jittered backoff; calls fail with UNAVAILABLE meanwhile unless they wait for ready.
package grpcclient

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"postrider.dev/pkg/config"
	"postrider.dev/pkg/internal/callmeta"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/obs"
	"postrider.dev/pkg/run"
	"postrider.dev/pkg/tenant"
)

const (
	// MaxMessageBytes bounds one message in either direction: the largest request, 32 MiB, and what frames it.
	MaxMessageBytes = 40 << 20

	minConnectTimeout = 3 * time.Second
	keepaliveEvery    = 20 * time.Second // grpcserver.MinKeepalive must stay below it
	keepaliveTimeout  = 5 * time.Second
)

// Dial returns a connection to addr, "host:port" or "mem:NAME", through env.Dial. It does not connect yet and does not fail for an unreachable
// peer. An empty secret is not sent. The options come last and override what is set here.
func Dial(env run.Env, addr string, secret config.Secret, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	if addr == "" {
		return nil, errors.New("dial grpc: no address")
	}
	out := &outgoing{secret: secret}
	all := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(env.Dial),
		grpc.WithChainUnaryInterceptor(out.unary),
		grpc.WithChainStreamInterceptor(out.stream),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: minConnectTimeout,
		}),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
	}
	if obs.Recording(env.Traces) {
		all = append(all, grpc.WithStatsHandler(otelgrpc.NewClientHandler(
			otelgrpc.WithTracerProvider(env.Traces), otelgrpc.WithPropagators(obs.Propagator()))))
	} else { // the stats handler costs every message of every stream; passing the context on needs the start alone
		out.propagator = obs.Propagator()
	}
	if !strings.HasPrefix(addr, memnet.Prefix) { // memory does not lose its peer silently
		all = append(all, grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: keepaliveEvery, Timeout: keepaliveTimeout, PermitWithoutStream: true,
		}))
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, append(all, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("dial grpc %s: %w", addr, err)
	}
	return conn, nil
}

// outgoing is what every call carries.
type outgoing struct {
	secret     config.Secret
	propagator propagation.TextMapPropagator // nil: the stats handler does it
}

// context adds the secret, the caller and the trace context to what ctx sends, replacing any that is there: a handler that passes its incoming
// metadata on must not be able to speak for another tenant.
func (o *outgoing) context(ctx context.Context) context.Context {
	old, _ := metadata.FromOutgoingContext(ctx)
	md := callmeta.Strip(old)
	if o.secret.IsSet() {
		md[callmeta.Secret] = []string{o.secret.Reveal()}
	}
	if c, ok := tenant.CallerFrom(ctx); ok {
		callmeta.Put(md, c)
	}
	if o.propagator != nil {
		o.propagator.Inject(ctx, callmeta.Carrier(md))
	}
	return metadata.NewOutgoingContext(ctx, md)
}

func (o *outgoing) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(o.context(ctx), method, req, reply, cc, opts...)
}

func (o *outgoing) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
	opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return open(o.context(ctx), desc, cc, method, opts...)
}
