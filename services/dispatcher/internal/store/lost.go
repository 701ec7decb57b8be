package store

import (
	"context"
	"fmt"
)

// errStillThere says that a session did not end within two seconds. Trying again later may help.
var errStillThere = fmt.Errorf("a lost session is still at work: %w", context.DeadlineExceeded)

// lose remembers a backend whose connection broke while a write was on its way.
func (s *Store) lose(pid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pid != 0 {
		s.lost = append(s.lost, pid)
	}
}

// endLost returns when no lost backend can do anything any more. A lock alone would not tell that: the statement may not have reached its backend
// yet, and would be carried out after we looked. Calls wait for one another: who finds nothing to end must not look before another has ended it.
func (s *Store) endLost(ctx context.Context) error {
	select {
	case s.ending <- struct{}{}:
		defer func() { <-s.ending }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	lost := s.lost
	s.lost = nil
	s.mu.Unlock()
	if len(lost) == 0 {
		return nil
	}
	pids := make([]int32, len(lost))
	for i, pid := range lost {
		pids[i] = int32(pid)
	}
	var ended, left int
	err := s.db.QueryRow(ctx, s.sql.text("end_lost"), pids).Scan(&ended)
	if err == nil && ended > 0 {
		err = s.db.QueryRow(ctx, s.sql.text("lost_left"), pids).Scan(&left)
	}
	if err == nil && left > 0 {
		err = errStillThere
	}
	if err != nil {
		s.mu.Lock()
		s.lost = append(s.lost, lost...)
		s.mu.Unlock()
		return fmt.Errorf("end lost sessions: %w", err)
	}
	return nil
}

// unblock ends dispatchers' sessions that hold locks while they wait for their client, and returns how many it ended.
func (s *Store) unblock(ctx context.Context) (int, error) {
	var ended int
	if err := s.db.QueryRow(ctx, s.sql.text("end_idle_holders")).Scan(&ended); err != nil {
		return 0, fmt.Errorf("end idle lock holders: %w", err)
	}
	return ended, nil
}
