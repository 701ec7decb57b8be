// Package loop holds what the ingress does again and again.
package loop

import (
	"context"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/ingress/internal/domain"
)

const (
	beatEvery   = time.Second
	beatTimeout = 2 * time.Second
	// patience is how long the sidecar may be silent before the node writes its own heartbeat.
	patience = 2 * time.Second
)

// Announcer writes a node into the directory; store.Store is one.
type Announcer interface {
	Announce(ctx context.Context, node domain.Node) error
}

// Heartbeat keeps this node in the directory while no sidecar does.
type Heartbeat struct {
	store  Announcer
	hinted func() bool // the sidecar does it now
	node   func() domain.Node
	clk    clock.Clock
	log    *zap.Logger
}

// NewHeartbeat returns a Heartbeat for the node, whose state may change.
func NewHeartbeat(store Announcer, hinted func() bool, node func() domain.Node, clk clock.Clock, log *zap.Logger) *Heartbeat {
	return &Heartbeat{store: store, hinted: hinted, node: node, clk: clk, log: log}
}

// Run beats each second while the sidecar has been silent for a while, until ctx ends.
func (h *Heartbeat) Run(ctx context.Context) error {
	tick := h.clk.NewTicker(beatEvery)
	defer tick.Stop()
	silentSince := h.clk.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
		if h.hinted() {
			silentSince = h.clk.Now()
			continue
		}
		if h.clk.Since(silentSince) >= patience {
			h.beat(ctx)
		}
	}
}

func (h *Heartbeat) beat(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	if err := h.store.Announce(ctx, h.node()); err != nil && ctx.Err() == nil {
		h.log.Debug("heartbeat not written", zap.Error(err))
	}
}
