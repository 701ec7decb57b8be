package server

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/tenant"
	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	"postrider.dev/services/ingress/internal/domain"
)

// AdminVerbs change tenants and keys; store.Store has them.
type AdminVerbs interface {
	CreateTenant(ctx context.Context, by tenant.Caller, id tenant.ID) (domain.Tenant, error)
	CreateKey(ctx context.Context, by tenant.Caller, key domain.APIKey) (domain.APIKey, error)
	RevokeKey(ctx context.Context, by tenant.Caller, id domain.KeyID, within tenant.ID) error
	SetMode(ctx context.Context, by tenant.Caller, m domain.Mode) (domain.Mode, error)
}

// AdminStore keeps tenants and keys, and what requests with an idempotency key were answered.
type AdminStore interface {
	AdminVerbs
	idempotency.Keeper[AdminVerbs]

	ListTenants(ctx context.Context) ([]domain.Tenant, error)
	ListKeys(ctx context.Context, id tenant.ID) ([]domain.APIKey, error)
	ListNodes(ctx context.Context) ([]domain.Node, error)
	Modes(ctx context.Context) ([]domain.Mode, error)
}

type adminService struct {
	adminv1.UnimplementedAdminServiceServer

	rules      *rules
	store      AdminStore
	clk        clock.Clock
	timeout    time.Duration
	keyChanged func(domain.KeyID)
	modeSet    func(mode string)
	spools     func(context.Context) []*adminv1.Spool
	mesh       func(context.Context) *adminv1.Mesh
}

func (s *adminService) CreateTenant(ctx context.Context, req *adminv1.CreateTenantRequest) (*adminv1.CreateTenantResponse, error) {
	if v := s.rules.check(req); v != nil {
		return nil, violation(v)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	caller, _ := tenant.CallerFrom(ctx)
	resp, _, err := once(ctx, s, adminv1.AdminService_CreateTenant_FullMethodName, req, &adminv1.CreateTenantResponse{},
		func(st AdminVerbs) (*adminv1.CreateTenantResponse, error) {
			t, err := st.CreateTenant(ctx, caller, tenant.ID(req.GetId()))
			if errors.Is(err, domain.ErrExists) {
				return nil, apierr.AlreadyExists(reasonTenantExists, "there is a tenant of that id")
			}
			return &adminv1.CreateTenantResponse{Tenant: tenantToWire(t)}, err
		})
	return resp, err
}

func (s *adminService) ListTenants(ctx context.Context, _ *adminv1.ListTenantsRequest) (*adminv1.ListTenantsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	tenants, err := s.store.ListTenants(ctx)
	if err != nil {
		return nil, wireError(err)
	}
	out := &adminv1.ListTenantsResponse{}
	for _, t := range tenants {
		out.Tenants = append(out.Tenants, tenantToWire(t))
	}
	return out, nil
}

// whose returns the tenant a request is about: the caller's, or another one for an administrator of the default tenant.
func whose(caller tenant.Caller, asked string) (tenant.ID, error) {
	switch {
	case asked == "" || tenant.ID(asked) == caller.Tenant:
		return caller.Tenant, nil
	case caller.Tenant != tenant.Default:
		return "", apierr.PermissionDenied(reasonDefaultTenant, "another tenant's keys are for keys of tenant "+string(tenant.Default))
	}
	return tenant.ID(asked), nil
}

func (s *adminService) CreateAPIKey(ctx context.Context, req *adminv1.CreateAPIKeyRequest) (*adminv1.CreateAPIKeyResponse, error) {
	if v := s.rules.check(req); v != nil {
		return nil, violation(v)
	}
	caller, _ := tenant.CallerFrom(ctx)
	owner, err := whose(caller, req.GetTenant())
	if err != nil {
		return nil, err
	}
	key, secret, err := domain.NewKey(domain.Random())
	if err != nil {
		return nil, err
	}
	record := domain.APIKey{ID: key.ID, Tenant: owner, Name: req.GetName(), Role: roleFromWire(req.GetRole()), Hash: key.Hash()}
	if req.GetExpiresAt() != nil {
		record.ExpiresAt = req.GetExpiresAt().AsTime()
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	resp, replayed, err := once(ctx, s, adminv1.AdminService_CreateAPIKey_FullMethodName, req, &adminv1.CreateAPIKeyResponse{},
		func(st AdminVerbs) (*adminv1.CreateAPIKeyResponse, error) {
			return s.createKey(ctx, st, caller, record)
		})
	if err != nil {
		return nil, err
	}
	if !replayed { // the answer that is remembered has no secret
		resp.Secret = secret
	}
	s.keyChanged(domain.KeyID(resp.GetKey().GetId()))
	return resp, nil
}

// createKey makes a key and returns the answer without its secret.
func (s *adminService) createKey(ctx context.Context, st AdminVerbs, by tenant.Caller, key domain.APIKey) (*adminv1.CreateAPIKeyResponse, error) {
	if !key.ExpiresAt.IsZero() && !key.ExpiresAt.After(s.clk.Now()) {
		return nil, apierr.InvalidArgument(reasonExpiryPast, "expires_at", "expires_at has passed")
	}
	made, err := st.CreateKey(ctx, by, key)
	if errors.Is(err, domain.ErrNotFound) {
		return nil, apierr.NotFound(reasonTenantNotFound, "there is no tenant of that id")
	}
	return &adminv1.CreateAPIKeyResponse{Key: keyToWire(made)}, err
}

func (s *adminService) ListAPIKeys(ctx context.Context, req *adminv1.ListAPIKeysRequest) (*adminv1.ListAPIKeysResponse, error) {
	if v := s.rules.check(req); v != nil {
		return nil, violation(v)
	}
	caller, _ := tenant.CallerFrom(ctx)
	owner, err := whose(caller, req.GetTenant())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	keys, err := s.store.ListKeys(ctx, owner)
	if err != nil {
		return nil, wireError(err)
	}
	out := &adminv1.ListAPIKeysResponse{}
	for _, k := range keys {
		out.Keys = append(out.Keys, keyToWire(k))
	}
	return out, nil
}

func (s *adminService) RevokeAPIKey(ctx context.Context, req *adminv1.RevokeAPIKeyRequest) (*adminv1.RevokeAPIKeyResponse, error) {
	if v := s.rules.check(req); v != nil {
		return nil, violation(v)
	}
	caller, _ := tenant.CallerFrom(ctx)
	within := caller.Tenant
	if within == tenant.Default {
		within = "" // its administrators manage every tenant's keys
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	id := domain.KeyID(req.GetId())
	resp, _, err := once(ctx, s, adminv1.AdminService_RevokeAPIKey_FullMethodName, req, &adminv1.RevokeAPIKeyResponse{},
		func(st AdminVerbs) (*adminv1.RevokeAPIKeyResponse, error) {
			err := st.RevokeKey(ctx, caller, id, within)
			if errors.Is(err, domain.ErrNotFound) {
				return nil, apierr.NotFound(reasonKeyNotFound, "there is no key of that id")
			}
			return &adminv1.RevokeAPIKeyResponse{}, err
		})
	if err != nil {
		return nil, err
	}
	s.keyChanged(id)
	return resp, nil
}

func (s *adminService) GetSpool(ctx context.Context, _ *adminv1.GetSpoolRequest) (*adminv1.GetSpoolResponse, error) {
	return &adminv1.GetSpoolResponse{Spools: s.spools(ctx)}, nil
}

func (s *adminService) GetMesh(ctx context.Context, _ *adminv1.GetMeshRequest) (*adminv1.GetMeshResponse, error) {
	return &adminv1.GetMeshResponse{Mesh: s.mesh(ctx)}, nil
}

func (s *adminService) ListNodes(ctx context.Context, _ *adminv1.ListNodesRequest) (*adminv1.ListNodesResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	nodes, err := s.store.ListNodes(ctx)
	if err != nil {
		return nil, wireError(err)
	}
	out := &adminv1.ListNodesResponse{}
	for _, n := range nodes {
		out.Nodes = append(out.Nodes, &adminv1.Node{
			Id: n.ID, Host: n.Host, Zone: n.Zone, Service: n.Service, State: n.State, Addresses: n.Addresses,
			StartedAt: timestamppb.New(n.StartedAt), HeartbeatAt: timestamppb.New(n.HeartbeatAt), Version: n.Version,
		})
	}
	return out, nil
}
