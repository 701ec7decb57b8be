package postrider

import (
	"context"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
)

// Mesh shows how the host of the node that answers is joined to the other hosts. It needs an admin key of the default tenant, and no database.
func (c *Client) Mesh(ctx context.Context) (*adminv1.Mesh, error) {
	resp, err := again(ctx, func() (*adminv1.GetMeshResponse, error) {
		return adminv1.NewAdminServiceClient(c.conn).GetMesh(ctx, &adminv1.GetMeshRequest{})
	})
	return resp.GetMesh(), err
}
