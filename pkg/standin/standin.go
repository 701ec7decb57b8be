// Package standin does again and again, for a partner that has fallen silent, what the partner otherwise does: a service writes its own heartbeat
// while its sidecar is away.
package standin

import (
	"context"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
)

// Standin acts for a partner. Use New.
type Standin struct {
	clk      clock.Clock
	log      *zap.Logger
	present  func() bool
	act      func(ctx context.Context) error
	every    time.Duration
	patience time.Duration
}

// New returns a Standin that calls act each `every` once the partner has not been present for patience. An act that takes longer than two
// periods is cut off; one that fails is logged and tried at the next period.
func New(clk clock.Clock, log *zap.Logger, every, patience time.Duration, present func() bool, act func(ctx context.Context) error) *Standin {
	return &Standin{clk: clk, log: log, present: present, act: act, every: every, patience: patience}
}

// Run acts until ctx ends.
func (s *Standin) Run(ctx context.Context) error {
	tick := s.clk.NewTicker(s.every)
	defer tick.Stop()
	absentSince := s.clk.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
		if s.present() {
			absentSince = s.clk.Now()
			continue
		}
		if s.clk.Since(absentSince) >= s.patience {
			s.once(ctx)
		}
	}
}

func (s *Standin) once(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*s.every)
	defer cancel()
	if err := s.act(ctx); err != nil && ctx.Err() == nil {
		s.log.Debug("standing in", zap.Error(err))
	}
}
