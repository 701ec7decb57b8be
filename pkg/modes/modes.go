// Package modes knows the modes of the fleet: what an administrator decided for all hosts at once.
//
// The truth is a table that is not owned here, read through the exported function mesh.modes(): at the start, when a hint says that a mode changed, when
// hints may have been missed, and each refresh. A hint only makes it be read. Until the first reading succeeded the modes are not known, which is not the
// same as off: who must not act against a mode waits (Await). While the database is away the last reading stays.
package modes

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/reread"
	"postrider.dev/pkg/run"
)

// Names of the modes.
const (
	Maintenance    = "maintenance"
	PopMaintenance = "pop_maintenance"
)

// Mode is one of them. The zero value is off.
type Mode struct {
	Enabled bool
	Reason  string // as the administrator wrote it
}

// Modes are all of them at one moment.
type Modes struct {
	Maintenance    Mode // pushes go to the spool
	PopMaintenance Mode // pops hand out nothing; everything else of a lease goes on
}

// SQLSTATEs of a function that is not there yet.
const (
	undefinedFunction = "42883"
	invalidSchema     = "3F000"
)

// Read returns the modes as the database has them. Before their owner has made them, all are off. A mode that is not known here is of a later release.
func Read(ctx context.Context, db *pg.DB) (out Modes, err error) {
	rows, err := db.Query(ctx, "SELECT m.name, m.enabled, m.reason FROM mesh.modes() AS m")
	if err != nil {
		return out, readError(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		var m Mode
		if err := rows.Scan(&name, &m.Enabled, &m.Reason); err != nil {
			return out, readError(err)
		}
		switch name {
		case Maintenance:
			out.Maintenance = m
		case PopMaintenance:
			out.PopMaintenance = m
		}
	}
	return out, readError(rows.Err())
}

func readError(err error) error {
	if code := pg.Code(err); err == nil || code == undefinedFunction || code == invalidSchema {
		return nil
	}
	return fmt.Errorf("read modes: %w", err)
}

// alone is how often the modes are read while no sidecar would tell of a change.
const alone = time.Second

// Watch is the modes as this process knows them. It is safe for concurrent use.
//
//	m, known := w.Current()           // what to do with a request that comes now
//	m, known, changed := w.Observe()  // the same, and a channel that is closed at the next change: loop over it to follow
//	m, err := w.Await(ctx)            // waits for the first reading
type Watch struct {
	value *reread.Value[Modes]
}

// New returns a Watch that knows nothing until Run has read once. hinted reports whether hints arrive now; while they do not, the modes are read each
// second, or each refresh if that is shorter. read is Read on the database of the service, whose name the metric has.
func New(env run.Env, service string, refresh time.Duration, hinted func() bool, read func(ctx context.Context) (Modes, error)) *Watch {
	gauge := promauto.With(env.Metrics).NewGaugeVec(prometheus.GaugeOpts{
		Name: prometheus.BuildFQName("postrider", service, "mode_enabled"),
		Help: "1 while the mode is on, as this process last read it: maintenance or pop_maintenance.",
	}, []string{"mode"})
	period := func() time.Duration {
		if hinted() {
			return refresh
		}
		return min(refresh, alone)
	}
	return &Watch{value: reread.New(env.Clock, env.Log.Named("modes"), period, func(ctx context.Context) (Modes, error) {
		m, err := read(ctx)
		if err != nil {
			return m, err
		}
		gauge.WithLabelValues(Maintenance).Set(number(m.Maintenance.Enabled))
		gauge.WithLabelValues(PopMaintenance).Set(number(m.PopMaintenance.Enabled))
		return m, nil
	})}
}

func number(on bool) float64 {
	if on {
		return 1
	}
	return 0
}

// Run reads until ctx ends.
func (w *Watch) Run(ctx context.Context) error { return w.value.Run(ctx) }

// Look makes the modes be read again soon. It never blocks.
func (w *Watch) Look() { w.value.Look() }

// Current returns the modes as last read; known is false before the first reading.
func (w *Watch) Current() (m Modes, known bool) { return w.value.Current() }

// Observe is Current with a channel that is closed at the next change: who looks, and then waits on the channel, misses none.
func (w *Watch) Observe() (m Modes, known bool, changed <-chan struct{}) { return w.value.Watch() }

// Await returns the modes as last read, or waits for the first reading as long as ctx allows.
func (w *Watch) Await(ctx context.Context) (Modes, error) { return w.value.Await(ctx) }
