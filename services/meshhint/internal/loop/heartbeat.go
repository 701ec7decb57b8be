// Package loop holds what the sidecar does again and again.
package loop

import (
	"context"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/meshhint/internal/domain"
	"postrider.dev/services/meshhint/internal/engine"
)

type directory interface {
	Announce(ctx context.Context, nodes []domain.Node) (changed int, err error)
	Forget(ctx context.Context) error
}

// forgetEvery is how many heartbeats pass between two looks for nodes to forget.
const forgetEvery = 600

// Heartbeat keeps the host's nodes in the directory.
type Heartbeat struct {
	dir     directory
	hub     *engine.Hub
	metrics *engine.Metrics
	clk     clock.Clock
	log     *zap.Logger
	every   time.Duration
	soon    chan struct{}
}

// NewHeartbeat returns a loop that writes each `every`, and at once after Soon.
func NewHeartbeat(dir directory, hub *engine.Hub, m *engine.Metrics, clk clock.Clock, log *zap.Logger, every time.Duration) *Heartbeat {
	return &Heartbeat{dir: dir, hub: hub, metrics: m, clk: clk, log: log, every: every, soon: make(chan struct{}, 1)}
}

// Soon asks for a write now, since a node came, went or changed.
func (b *Heartbeat) Soon() {
	select {
	case b.soon <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends. A write that fails is logged and tried at the next beat: other hosts then see these nodes age.
func (b *Heartbeat) Run(ctx context.Context) error {
	tick := b.clk.NewTicker(b.every)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-b.soon:
		case <-tick.C():
		}
		b.Beat(ctx)
		if n%forgetEvery == forgetEvery-1 {
			if err := b.dir.Forget(ctx); err != nil && ctx.Err() == nil {
				b.log.Warn("forget nodes", zap.Error(err))
			}
		}
	}
}

// Beat writes once, within one period.
func (b *Heartbeat) Beat(ctx context.Context) {
	write, cancel := context.WithTimeout(ctx, max(b.every, time.Second))
	defer cancel()
	nodes := b.hub.Nodes()
	if len(nodes) == 0 {
		return
	}
	changed, err := b.dir.Announce(write, nodes)
	if err != nil && ctx.Err() != nil {
		return // a beat that the end of the process cut off is no failure
	}
	b.metrics.Heartbeat(err)
	if err != nil {
		b.log.Warn("heartbeat", zap.Error(err))
		return
	}
	b.hub.Written(nodes)
	if changed > 0 {
		b.hub.NodesChanged()
	}
}
