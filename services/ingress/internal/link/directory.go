// Package link finds and dials what the ingress depends on: the dispatchers, from a static list or the node directory, and the sidecar of the host,
// which announces this node and brings hints.
package link

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine"
)

// Nodes reads the node directory.
type Nodes interface {
	ListNodes(ctx context.Context) ([]domain.Node, error)
}

// Exchange takes the set of dispatchers.
type Exchange interface {
	SetTargets(targets []engine.Target)
}

const (
	queryTimeout = 2 * time.Second
	pollAlone    = time.Second      // without a sidecar nobody tells of changes
	pollHinted   = 15 * time.Second // a lost hint costs no more than this
)

// Directory keeps the exchange's set of dispatchers as the node directory has it.
type Directory struct {
	nodes    Nodes
	exchange Exchange
	hinted   func() bool
	clk      clock.Clock
	log      *zap.Logger
	host     string
	wake     chan struct{}
}

// NewDirectory returns a Directory for the host. hinted reports whether hints arrive now; then the directory is read less often.
func NewDirectory(nodes Nodes, exchange Exchange, hinted func() bool, clk clock.Clock, log *zap.Logger, host string) *Directory {
	return &Directory{nodes: nodes, exchange: exchange, hinted: hinted, clk: clk, log: log, host: host, wake: make(chan struct{}, 1)}
}

// Changed makes the directory be read again soon.
func (d *Directory) Changed() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run reads the directory again and again until ctx ends. While it cannot be read the last set stays: a dead dispatcher is found by its streams.
func (d *Directory) Run(ctx context.Context) error {
	var last []engine.Target
	for ctx.Err() == nil {
		if targets, err := d.read(ctx); err != nil {
			d.log.Warn("node directory cannot be read", zap.Error(err))
		} else if !slices.Equal(targets, last) {
			d.exchange.SetTargets(targets)
			last = targets
		}
		d.pause(ctx)
	}
	return nil
}

func (d *Directory) pause(ctx context.Context) {
	every := pollAlone
	if d.hinted() {
		every = pollHinted
	}
	clock.Rest(ctx, d.clk, every-every/8+rand.N(every/4), d.wake) //nolint:gosec // G404: jitter needs spread, not secrecy.
}

func (d *Directory) read(ctx context.Context) ([]engine.Target, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	nodes, err := d.nodes.ListNodes(ctx)
	if err != nil {
		return nil, err
	}
	var targets []engine.Target
	for _, n := range nodes {
		addr := n.Addresses["internal"]
		if addr == "" {
			addr = n.Addresses["grpc"]
		}
		if n.Service != "dispatcher" || addr == "" || n.State != "online" && n.State != "draining" {
			continue
		}
		targets = append(targets, engine.Target{Addr: addr, Own: n.Host == d.host, Leaving: n.State == "draining"})
	}
	return newest(targets), nil
}

// newest keeps one target an address: a process that started anew where another is still leaving is the one that listens there.
func newest(targets []engine.Target) []engine.Target {
	var out []engine.Target
	for _, t := range targets {
		i := slices.IndexFunc(out, func(o engine.Target) bool { return o.Addr == t.Addr })
		switch {
		case i < 0:
			out = append(out, t)
		case out[i].Leaving:
			out[i] = t
		}
	}
	return out
}

// Static returns the targets of a configured list: its first is the own host's.
func Static(addrs []string) []engine.Target {
	targets := make([]engine.Target, 0, len(addrs))
	for i, addr := range addrs {
		targets = append(targets, engine.Target{Addr: addr, Own: i == 0})
	}
	return targets
}
