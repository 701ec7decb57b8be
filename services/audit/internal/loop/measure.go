// Package loop holds what the audit service repeats.
package loop

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/obs"
	"postrider.dev/services/audit/internal/store"
)

// measureTimeout bounds one look at the outbox.
const measureTimeout = 30 * time.Second

// outboxes is the store as the Measurer sees it.
type outboxes interface {
	Outbox(ctx context.Context) (store.Outbox, error)
}

// Measurer looks at the outbox again and again, for the metrics.
type Measurer struct {
	store   outboxes
	clk     clock.Clock
	log     *zap.Logger
	every   time.Duration
	entries prometheus.Gauge
	oldest  prometheus.Gauge
	failed  prometheus.Counter
}

// NewMeasurer returns a measurer; every is the pause between two looks.
func NewMeasurer(st outboxes, reg prometheus.Registerer, clk clock.Clock, log *zap.Logger, every time.Duration) *Measurer {
	with := promauto.With(reg)
	return &Measurer{
		store: st, clk: clk, log: log, every: every,
		entries: with.NewGauge(prometheus.GaugeOpts{Name: "postrider_audit_outbox_entries", Help: "Entries that wait to be chained, at the last look."}),
		oldest: with.NewGauge(prometheus.GaugeOpts{
			Name: "postrider_audit_outbox_oldest_seconds", Help: "Age of the oldest entry that waits, by the database's time, at the last look.",
		}),
		failed: with.NewCounter(prometheus.CounterOpts{Name: "postrider_audit_outbox_looks_failed_total", Help: "Looks at the outbox that failed."}),
	}
}

// Run looks at once and then every so often, until ctx ends. A look that fails is counted and leaves the last values.
func (m *Measurer) Run(ctx context.Context) error {
	for {
		m.look(ctx)
		if err := m.clk.Sleep(ctx, m.every); err != nil {
			return err
		}
	}
}

func (m *Measurer) look(ctx context.Context) {
	lctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	o, err := m.store.Outbox(lctx)
	if err != nil {
		if ctx.Err() == nil {
			m.failed.Inc()
			m.log.Warn("outbox not measured", obs.Err(err))
		}
		return
	}
	m.entries.Set(float64(o.Entries))
	m.oldest.Set(o.Oldest.Seconds())
}
