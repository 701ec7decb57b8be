package postrider

import (
	"context"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
)

// Modes returns the modes of the fleet. It needs an admin key of the default tenant.
func (c *Client) Modes(ctx context.Context) ([]*adminv1.Mode, error) {
	resp, err := again(ctx, func() (*adminv1.GetModesResponse, error) { return c.admin.GetModes(ctx, &adminv1.GetModesRequest{}) })
	return resp.GetModes(), err
}

// SetMode sets a mode of the fleet, such as "pop_maintenance", and returns it. Whoever meets it is told the reason. Setting what is set changes nothing.
func (c *Client) SetMode(ctx context.Context, mode string, enabled bool, reason string) (*adminv1.Mode, error) {
	resp, err := again(ctx, func() (*adminv1.SetModeResponse, error) {
		return c.admin.SetMode(ctx, &adminv1.SetModeRequest{Mode: mode, Enabled: &enabled, Reason: reason})
	})
	return resp.GetMode(), err
}
