package loop

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/services/dispatcher/internal/store"
)

const (
	rewrapEvery = 30 * time.Second
	rewrapKeys  = 200 // in one step
)

// keyStore is where the keys of encrypted queues are.
type keyStore interface {
	// RewrapKeys wraps up to most keys behind an id again with the first master key.
	RewrapKeys(ctx context.Context, after int32, most int) (store.Rewrapped, error)
	// KeysOfOtherMasters counts the keys that the first master key does not wrap, by the id of the one that does.
	KeysOfOtherMasters(ctx context.Context) (map[string]int, error)
}

// Rewrapper brings the keys of encrypted queues under the first master key, so that older ones can be removed, and tells how many are not yet.
type Rewrapper struct {
	db   keyStore
	clk  clock.Clock
	log  *zap.Logger
	left prometheus.Gauge
	told map[string]int
}

// NewRewrapper returns a Rewrapper.
func NewRewrapper(db keyStore, clk clock.Clock, log *zap.Logger, reg prometheus.Registerer) *Rewrapper {
	return &Rewrapper{db: db, clk: clk, log: log, left: promauto.With(reg).NewGauge(prometheus.GaugeOpts{
		Name: "postrider_dispatcher_encryption_keys_of_other_masters",
		Help: "Keys of encrypted queues that another than this dispatcher's first master key wraps: while it is above 0, no master key may be removed.",
	})}
}

// Run works until ctx ends.
func (r *Rewrapper) Run(ctx context.Context) error {
	return every(ctx, r.clk, rewrapEvery, r.log, "rewrapper", r.Round)
}

// Round wraps again what it can, and tells what is left.
func (r *Rewrapper) Round(ctx context.Context) error {
	for after := int32(0); ctx.Err() == nil; {
		step, err := r.db.RewrapKeys(ctx, after, rewrapKeys)
		if err != nil {
			return err
		}
		if step.Keys > 0 {
			r.log.Info("keys of encrypted queues are wrapped by the first master key now", zap.Int("keys", step.Keys))
		}
		if step.Last == 0 {
			break
		}
		after = step.Last
	}
	left, err := r.db.KeysOfOtherMasters(ctx)
	if err != nil {
		return err
	}
	sum := 0
	for id, n := range left {
		sum += n
		if r.told[id] != n {
			r.log.Warn("keys of encrypted queues are wrapped by a master key that is not the first here", zap.String("master_id", id), zap.Int("keys", n))
		}
	}
	if sum == 0 && len(r.told) > 0 {
		r.log.Info("all keys of encrypted queues are wrapped by the first master key")
	}
	r.told = left
	r.left.Set(float64(sum))
	return nil
}
