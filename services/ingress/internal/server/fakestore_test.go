package server_test

import (
	"context"
	"sync"
	"time"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/server"
)

type fakeStore struct{ kept sync.Map } // of string to []byte

// Once keeps answers by their keys alone; the key "reused" is refused, and so is "busy".
func (s *fakeStore) Once(_ context.Context, req idempotency.Request, do func(server.AdminVerbs) ([]byte, error)) ([]byte, bool, error) {
	switch req.Key {
	case "reused":
		return nil, false, idempotency.ErrReused
	case "busy":
		return nil, false, idempotency.ErrInUse
	}
	if answer, ok := s.kept.Load(req.Method + req.Key); ok {
		kept, _ := answer.([]byte)
		return kept, true, nil
	}
	answer, err := do(s)
	if err == nil {
		s.kept.Store(req.Method+req.Key, answer)
	}
	return answer, false, err
}

func (*fakeStore) CreateTenant(_ context.Context, _ tenant.Caller, id tenant.ID) (domain.Tenant, error) {
	return domain.Tenant{ID: id, CreatedAt: t0()}, nil
}

func (*fakeStore) ListTenants(context.Context) ([]domain.Tenant, error) {
	return []domain.Tenant{{ID: "default", CreatedAt: t0()}}, nil
}

func (*fakeStore) CreateKey(_ context.Context, _ tenant.Caller, key domain.APIKey) (domain.APIKey, error) {
	key.CreatedAt = t0()
	return key, nil
}

func (*fakeStore) ListKeys(_ context.Context, id tenant.ID) ([]domain.APIKey, error) {
	return []domain.APIKey{{ID: "k1", Tenant: id, Name: "n", Role: tenant.Read, CreatedAt: t0(), RevokedAt: t0().Add(time.Hour)}}, nil
}

func (*fakeStore) RevokeKey(_ context.Context, _ tenant.Caller, id domain.KeyID, within tenant.ID) error {
	if id != "k1" || within != "" {
		return domain.ErrNotFound
	}
	return nil
}

func (*fakeStore) ListNodes(context.Context) ([]domain.Node, error) {
	return []domain.Node{{
		ID: "n1", Host: "h1", Zone: "z", Service: "ingress", State: "online", Version: "v1",
		Addresses: map[string]string{"http": "127.0.0.1:7400"}, StartedAt: t0(), HeartbeatAt: t0().Add(time.Second),
	}}, nil
}
