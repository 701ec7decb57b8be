package dispatcher

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/spool"
)

// openSpool takes the folder of the spool, if there is one, and reads what a former run left in it.
func (s *service) openSpool(parts *engine.Parts) error {
	if s.cfg.SpoolDir == "" {
		s.env.Log.Info("no spool: pushes are refused while the database is away")
		return nil
	}
	folder, err := spool.Folder(s.cfg.SpoolDir)
	if err != nil {
		return err
	}
	backlog := engine.NewBacklog()
	s.spool, err = spool.Open(folder, spool.Options{MaxBytes: s.cfg.SpoolBytes, Log: s.env.Log.Named("spool")}, backlog.Visit)
	if err != nil {
		return fmt.Errorf("open the spool in %s: %w", s.cfg.SpoolDir, err)
	}
	if n := s.spool.Stats().Records; n > 0 {
		s.env.Log.Info("the spool holds requests of a former run", zap.Int("records", n))
	}
	parts.Spool, parts.Backlog = s.spool, backlog
	return nil
}

func (s *service) closeSpool() error {
	if s.spool == nil {
		return nil
	}
	return s.spool.Close()
}

// maintenance reports whether that mode is on, and whether that is known yet.
func (s *service) maintenance() (on, known bool) {
	m, known := s.modes.Current()
	return m.Maintenance.Enabled, known
}

// spoolReady fails while somebody has to look at the spool.
func (s *service) spoolReady(context.Context) error {
	state, ok := s.engine.Spool()
	switch {
	case !ok:
		return nil
	case state.DamagedFiles+state.Damage > 0:
		return fmt.Errorf("the spool has %d damaged places; its files named *.damaged wait for somebody to look", state.Damage)
	case state.Blocked > 0:
		return fmt.Errorf("%d buffered requests of encrypted queues wait for a master key", state.Blocked)
	case state.Away:
		return fmt.Errorf("the database is away, %d requests are buffered", state.Records)
	}
	return nil
}
