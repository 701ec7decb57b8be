package httpserver

import (
	"cmp"
	"errors"
	"time"

	"postrider.dev/pkg/config"
)

const (
	defaultMaxBodyBytes = 32 << 20
	maxHeaderBytes      = 32 << 10
	readHeaderTimeout   = 5 * time.Second
	idleTimeout         = 2 * time.Minute
	bodyTimeout         = 30 * time.Second
)

// Options describe a server. Service, Listener and Addr are required; the zero value of everything else is sensible.
type Options struct {
	Service  string // the service's name, in metric names: "ingress"
	Listener string // which of its listeners this is, a metric label: "public", "admin"
	Addr     string // host:port, or mem:NAME

	MaxBodyBytes int64 // largest request body; 0: 32 MiB

	DrainDelay   time.Duration
	DrainTimeout time.Duration
	OnDrain      func() // called when draining begins, to turn readiness off
}

func (o Options) withDefaults() Options {
	o.MaxBodyBytes = cmp.Or(o.MaxBodyBytes, defaultMaxBodyBytes)
	return o
}

func (o Options) validate() error {
	return errors.Join(
		config.NotEmpty("service", o.Service),
		config.NotEmpty("listener", o.Listener),
		config.NotEmpty("addr", o.Addr),
	)
}
