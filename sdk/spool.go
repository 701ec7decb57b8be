package postrider

import (
	"context"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
)

// Spools shows what each dispatcher that the node reaches holds on its disk for the database. It needs an admin key of the default tenant, and no database.
func (c *Client) Spools(ctx context.Context) ([]*adminv1.Spool, error) {
	resp, err := again(ctx, func() (*adminv1.GetSpoolResponse, error) {
		return adminv1.NewAdminServiceClient(c.conn).GetSpool(ctx, &adminv1.GetSpoolRequest{})
	})
	return resp.GetSpools(), err
}
