package postrider

import (
	"context"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
)

// CreateTenant creates a tenant. It needs an admin key of the default tenant.
func (c *Client) CreateTenant(ctx context.Context, id string) (*adminv1.Tenant, error) {
	ctx = once(ctx)
	resp, err := again(ctx, func() (*adminv1.CreateTenantResponse, error) {
		return c.admin.CreateTenant(ctx, &adminv1.CreateTenantRequest{Id: id})
	})
	return resp.GetTenant(), err
}

// Tenants lists the tenants. It needs an admin key of the default tenant.
func (c *Client) Tenants(ctx context.Context) ([]*adminv1.Tenant, error) {
	resp, err := again(ctx, func() (*adminv1.ListTenantsResponse, error) {
		return c.admin.ListTenants(ctx, &adminv1.ListTenantsRequest{})
	})
	return resp.GetTenants(), err
}

// CreateAPIKey makes an API key and returns it with its secret, which is told once: where the answer was lost and the key was asked for again, Secret is empty,
// and the key is to be revoked.
func (c *Client) CreateAPIKey(ctx context.Context, req *adminv1.CreateAPIKeyRequest) (*adminv1.CreateAPIKeyResponse, error) {
	ctx = once(ctx)
	return again(ctx, func() (*adminv1.CreateAPIKeyResponse, error) { return c.admin.CreateAPIKey(ctx, req) })
}

// APIKeys lists the API keys of a tenant, the caller's own if it is empty.
func (c *Client) APIKeys(ctx context.Context, tenant string) ([]*adminv1.APIKey, error) {
	resp, err := again(ctx, func() (*adminv1.ListAPIKeysResponse, error) {
		return c.admin.ListAPIKeys(ctx, &adminv1.ListAPIKeysRequest{Tenant: tenant})
	})
	return resp.GetKeys(), err
}

// RevokeAPIKey ends an API key, on every node within seconds.
func (c *Client) RevokeAPIKey(ctx context.Context, id string) error {
	ctx = once(ctx)
	_, err := again(ctx, func() (*adminv1.RevokeAPIKeyResponse, error) {
		return c.admin.RevokeAPIKey(ctx, &adminv1.RevokeAPIKeyRequest{Id: id})
	})
	return err
}

// Nodes lists the processes of the fleet. It needs an admin key of the default tenant.
func (c *Client) Nodes(ctx context.Context) ([]*adminv1.Node, error) {
	resp, err := again(ctx, func() (*adminv1.ListNodesResponse, error) { return c.admin.ListNodes(ctx, &adminv1.ListNodesRequest{}) })
	return resp.GetNodes(), err
}
