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
	all := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(env.Dial),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler(
			otelgrpc.WithTracerProvider(env.Traces), otelgrpc.WithPropagators(obs.Propagator()))),
		grpc.WithChainUnaryInterceptor(unary(secret)),
		grpc.WithChainStreamInterceptor(stream(secret)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: minConnectTimeout,
		}),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
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

// outgoing adds the secret and the caller to what ctx sends, replacing any that is there: a handler that passes its incoming metadata on must not
// be able to speak for another tenant.
func outgoing(ctx context.Context, secret config.Secret) context.Context {
	kv := make([]string, 0, 8)
	if secret.IsSet() {
		kv = append(kv, callmeta.Secret, secret.Reveal())
	}
	if c, ok := tenant.CallerFrom(ctx); ok {
		kv = callmeta.Append(kv, c)
	}
	md, ok := metadata.FromOutgoingContext(ctx)
	if !ok {
		return metadata.AppendToOutgoingContext(ctx, kv...)
	}
	return metadata.AppendToOutgoingContext(metadata.NewOutgoingContext(ctx, callmeta.Strip(md)), kv...)
}

func unary(secret config.Secret) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return invoke(outgoing(ctx, secret), method, req, reply, cc, opts...)
	}
}

func stream(secret config.Secret) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer,
		opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		return open(outgoing(ctx, secret), desc, cc, method, opts...)
	}
}
