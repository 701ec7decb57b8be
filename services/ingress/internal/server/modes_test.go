package server_test

import (
	"context"
	"sync"

	"postrider.dev/pkg/modes"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/ingress/internal/domain"
)

func (*fakeStore) Modes(context.Context) ([]domain.Mode, error) {
	return []domain.Mode{{Name: "pop_maintenance", Enabled: true, Reason: "moving", ChangedAt: t0(), ChangedBy: "key:admin", Version: 3}}, nil
}

func (*fakeStore) SetMode(_ context.Context, by tenant.Caller, m domain.Mode) (domain.Mode, error) {
	m.ChangedAt, m.ChangedBy, m.Version = t0(), by.Actor, 4
	return m, nil
}

// fakeModes are modes that a test sets.
type fakeModes struct {
	mu      sync.Mutex // guards the rest
	now     modes.Modes
	unknown bool
	changed chan struct{}
}

func (f *fakeModes) Observe() (modes.Modes, bool, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now, !f.unknown, f.changed
}

func (f *fakeModes) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unknown = true
}

func (f *fakeModes) closePops(reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now.PopMaintenance = modes.Mode{Enabled: true, Reason: reason}
	close(f.changed)
	f.changed = make(chan struct{})
}
