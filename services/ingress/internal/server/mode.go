package server

import (
	"context"

	"postrider.dev/pkg/tenant"
	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	"postrider.dev/services/ingress/internal/domain"
)

func (s *adminService) GetModes(ctx context.Context, _ *adminv1.GetModesRequest) (*adminv1.GetModesResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	modes, err := s.store.Modes(ctx)
	if err != nil {
		return nil, wireError(err)
	}
	out := &adminv1.GetModesResponse{}
	for _, m := range modes {
		out.Modes = append(out.Modes, modeToWire(m))
	}
	return out, nil
}

func (s *adminService) SetMode(ctx context.Context, req *adminv1.SetModeRequest) (*adminv1.SetModeResponse, error) {
	if v := s.rules.check(req); v != nil {
		return nil, violation(v)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	caller, _ := tenant.CallerFrom(ctx)
	resp, _, err := once(ctx, s, adminv1.AdminService_SetMode_FullMethodName, req, &adminv1.SetModeResponse{},
		func(st AdminVerbs) (*adminv1.SetModeResponse, error) {
			m, err := st.SetMode(ctx, caller, domain.Mode{Name: req.GetMode(), Enabled: req.GetEnabled(), Reason: req.GetReason()})
			return &adminv1.SetModeResponse{Mode: modeToWire(m)}, err
		})
	if err != nil {
		return nil, err
	}
	s.modeSet(req.GetMode())
	return resp, nil
}

func modeToWire(m domain.Mode) *adminv1.Mode {
	return &adminv1.Mode{
		Mode: m.Name, Enabled: m.Enabled, Reason: m.Reason, ChangedAt: instant(m.ChangedAt), ChangedBy: m.ChangedBy, Version: m.Version,
	}
}
