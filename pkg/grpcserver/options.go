package grpcserver

import (
	"cmp"
	"errors"
	"time"

	"google.golang.org/grpc"

	"postrider.dev/pkg/config"
)

const (
	// MinKeepalive is the shortest ping interval that clients may use; more frequent ones are disconnected.
	MinKeepalive = 10 * time.Second

	defaultMaxRecvBytes = 40 << 20 // the largest request, 32 MiB, and what frames it
	defaultMaxDeadline  = 2 * time.Minute
	maxMetadataBytes    = 32 << 10
	publicMaxStreams    = 1000
	connectTimeout      = 10 * time.Second
	keepaliveEvery      = 30 * time.Second
	keepaliveTimeout    = 10 * time.Second
)

// Options describe a server. Service, Listener and Addr are required; the zero value of everything else is sensible for an internal listener on loopback.
type Options struct {
	Service  string // the service's name, in metric names: "dispatcher"
	Listener string // which of its listeners this is, a metric label: "internal", "public"
	Addr     string // host:port, or mem:NAME

	// Public marks a listener for strangers: what they say about tenant and actor is removed, and the service's own interceptors authenticate.
	// Otherwise peers must know ClusterSecret; without one every peer is trusted, so New refuses an address off loopback.
	Public        bool
	ClusterSecret config.Secret

	MaxRecvBytes int           // largest message; a service's own limits are lower, so that it says itself what is too large; 0: 40 MiB
	MaxDeadline  time.Duration // longest a unary call may take, whatever its caller asks; 0: 2 minutes
	Loopback     bool          // also serve Self, the connection of this process to itself

	DrainDelay   time.Duration
	DrainTimeout time.Duration
	OnDrain      func()          // called when draining begins, to turn readiness off
	StopAfter    <-chan struct{} // draining, the server keeps accepting until this closes (or DrainTimeout): a gateway in front of it ends first

	Unary  []grpc.UnaryServerInterceptor  // run inside ours, first one outermost
	Stream []grpc.StreamServerInterceptor // run inside ours, first one outermost
	Extra  []grpc.ServerOption
}

func (o Options) withDefaults() Options {
	o.MaxRecvBytes = cmp.Or(o.MaxRecvBytes, defaultMaxRecvBytes)
	o.MaxDeadline = cmp.Or(o.MaxDeadline, defaultMaxDeadline)
	return o
}

func (o Options) validate() error {
	errs := []error{
		config.NotEmpty("service", o.Service),
		config.NotEmpty("listener", o.Listener),
		config.NotEmpty("addr", o.Addr),
	}
	if o.Public && o.ClusterSecret.IsSet() {
		errs = append(errs, errors.New("a public listener must not take the cluster secret"))
	}
	if !o.Public {
		errs = append(errs, config.NonLoopbackNeeds("addr", o.Addr, "the cluster secret", o.ClusterSecret))
	}
	return errors.Join(errs...)
}
