package server

import (
	"context"
	"errors"
	"time"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/modes"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Pop maintenance is kept at two gates, and each is enough: an ingress that knows of it asks for nothing, and here nothing is handed out whatever the
// ingress knows. A pop gets through where neither has read the mode since it changed, which is a matter of the hint's way, or of MODES_REFRESH where the
// hint was lost. This gate is the strict one: before the first reading no pop begins.

// Modes are the modes of the fleet; modes.Watch has them.
type Modes interface {
	Observe() (m modes.Modes, known bool, changed <-chan struct{})
	Await(ctx context.Context) (modes.Modes, error)
}

const (
	// modesPatience is how long a pop waits for the first reading of the modes.
	modesPatience = 5 * time.Second
	retryModes    = time.Second
)

// errMaintenance ends parked pops.
var errMaintenance = errors.New("pops are in maintenance")

// popUnlessMaintenance is the engine's Pop while pops are not in maintenance. In maintenance, or if settleOnly, it settles what the pop settles.
func (s *exchange) popUnlessMaintenance(ctx context.Context, t tenant.ID, req *queuev1.PopRequest, settleOnly bool) (*queuev1.PopResponse, error) {
	m, err := s.knownModes(ctx)
	if err != nil {
		return nil, err
	}
	if settleOnly || m.PopMaintenance.Enabled {
		return s.inMaintenance(ctx, t, req, m)
	}
	resp, err := s.engine.Pop(ctx, t, req)
	if err != nil && errors.Is(context.Cause(ctx), errMaintenance) {
		m, _, _ = s.modes.Observe()
		return &queuev1.PopResponse{PopMaintenance: &queuev1.PopMaintenance{Reason: m.PopMaintenance.Reason}}, nil
	}
	return resp, err
}

func (s *exchange) inMaintenance(ctx context.Context, t tenant.ID, req *queuev1.PopRequest, m modes.Modes) (*queuev1.PopResponse, error) {
	resp, err := s.engine.SettleOnly(ctx, t, req)
	if err != nil {
		return nil, err
	}
	resp.PopMaintenance = &queuev1.PopMaintenance{Reason: m.PopMaintenance.Reason}
	return resp, nil
}

func (s *exchange) knownModes(ctx context.Context) (modes.Modes, error) {
	if m, known, _ := s.modes.Observe(); known {
		return m, nil
	}
	wait, cancel := context.WithTimeout(ctx, modesPatience)
	defer cancel()
	m, err := s.modes.Await(wait)
	switch {
	case err == nil:
		return m, nil
	case ctx.Err() != nil:
		return m, context.Cause(ctx)
	}
	return m, apierr.Unavailable(ReasonModesUnknown, "the modes of the fleet could not be read yet, so nothing is handed out", retryModes).WithCause(err)
}

// heedModes answers the stream's parked pops if pops are in maintenance now, and returns what is closed at the next change. A pop that begins afterwards
// sees the mode itself. One that settles is left: it does not park, and what it settled is to be told.
func (s *exchange) heedModes() (changed <-chan struct{}) {
	m, _, changed := s.modes.Observe()
	if !m.PopMaintenance.Enabled {
		return changed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pops {
		if !p.settles {
			p.end(errMaintenance)
		}
	}
	return changed
}
