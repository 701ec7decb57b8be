package postrider

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// maxFrame is the largest gRPC message sent or taken: a request of 32 MiB with its framing. A server's gRPC refuses a larger one without our code.
const maxFrame = 40 << 20

// Pauses between attempts: full jitter, doubling.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 2 * time.Second
)

// Client talks to a fleet. Make one with Dial and share it; Close it when done.
type Client struct {
	conn   *grpc.ClientConn
	queues queuev1.QueueServiceClient
	admin  adminv1.AdminServiceClient
	pusher *pusher
	origin string // names this client in what it pushes while it subscribes

	listening atomic.Int64 // subscriptions that do not want this client's own

	closed context.CancelFunc
	wg     sync.WaitGroup
}

type options struct {
	tls   credentials.TransportCredentials
	extra []grpc.DialOption
}

// Option changes how a Client connects.
type Option func(*options)

// WithTLS encrypts the connection.
func WithTLS(c credentials.TransportCredentials) Option { return func(o *options) { o.tls = c } }

// WithDialOptions adds gRPC options, for example a dialer or a stats handler.
func WithDialOptions(opts ...grpc.DialOption) Option {
	return func(o *options) { o.extra = append(o.extra, opts...) }
}

// Dial returns a client of the nodes at addrs (host:port of the public gRPC listeners) that authenticates with an API key. It connects when it is
// first used. The first address is preferred; the others are for when it is away.
func Dial(addrs []string, key string, opts ...Option) (*Client, error) {
	if len(addrs) == 0 {
		return nil, errors.New("dial: no address given")
	}
	o := options{tls: insecure.NewCredentials()}
	for _, opt := range opts {
		opt(&o)
	}
	nodes := manual.NewBuilderWithScheme("postrider")
	state := resolver.State{}
	for _, a := range addrs {
		state.Addresses = append(state.Addresses, resolver.Address{Addr: a})
	}
	nodes.InitialState(state)
	dial := []grpc.DialOption{
		grpc.WithResolvers(nodes),
		grpc.WithTransportCredentials(o.tls),
		grpc.WithPerRPCCredentials(apiKey(key)),
		grpc.WithDefaultServiceConfig(`{"loadBalancingConfig":[{"pick_first":{}}]}`),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxFrame), grpc.MaxCallSendMsgSize(maxFrame)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: retryMin, Multiplier: 2, Jitter: 0.5, MaxDelay: retryMax},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithUserAgent("postrider-go"),
		grpc.WithChainUnaryInterceptor(sayTooLarge),
	}
	conn, err := grpc.NewClient("postrider:///fleet", append(dial, o.extra...)...)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // the client's own lifetime, ended by Close
	c := &Client{conn: conn, queues: queuev1.NewQueueServiceClient(conn), admin: adminv1.NewAdminServiceClient(conn), closed: cancel, origin: crand.Text()[:12]}
	c.pusher = newPusher(c.queues)
	c.wg.Go(func() { c.pusher.run(ctx) })
	return c, nil
}

// Close ends the client. Pushes in flight fail with an error that matches ErrOutcomeUnknown.
func (c *Client) Close() error {
	c.closed()
	c.wg.Wait()
	return c.conn.Close()
}

// Queues is the generated client of the queue area, for what has no method here.
func (c *Client) Queues() queuev1.QueueServiceClient { return c.queues }

// Connected waits until a node answers, or ctx ends.
func (c *Client) Connected(ctx context.Context) error {
	c.conn.Connect()
	for state := c.conn.GetState(); state != connectivity.Ready; state = c.conn.GetState() {
		if state == connectivity.Shutdown {
			return ErrClosed
		}
		if !c.conn.WaitForStateChange(ctx, state) {
			return context.Cause(ctx)
		}
		c.conn.Connect()
	}
	return nil
}

// apiKey authenticates each call. A key may travel unencrypted on loopback and inside a cluster; TLS is the caller's choice.
type apiKey string

func (k apiKey) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(k)}, nil
}

func (apiKey) RequireTransportSecurity() bool { return false }

// again calls op until it does not fail with "away", or ctx ends. Only for operations that may be repeated.
func again[T any](ctx context.Context, op func() (T, error)) (T, error) {
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		v, err := op()
		err = fromStatus(err)
		if err == nil || !isAway(err) {
			return v, err
		}
		if !sleep(ctx, rand.N(pause)+1) { //nolint:gosec // G404: jitter needs spread, not secrecy
			return v, err
		}
	}
}

// sleep reports whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
