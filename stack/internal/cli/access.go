package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"postrider.dev/pkg/clock"
	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	postrider "postrider.dev/sdk"
)

func newNodes(g *globals) *cobra.Command {
	return listing(g, "nodes", "List the processes of the fleet", (*postrider.Client).Nodes, []string{"Node", "Host", "Zone", "Service", "State", "Version", "Heartbeat"},
		func(n *adminv1.Node) []any {
			return []any{n.GetId(), n.GetHost(), n.GetZone(), n.GetService(), n.GetState(), n.GetVersion(), when(n.GetHeartbeatAt().AsTime())}
		})
}

func newTenant(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "tenant COMMAND", Short: "List and make tenants", Args: noSuchCommand, RunE: help}
	add := &cobra.Command{
		Use: "add TENANT", Short: "Make a tenant", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				made, err := c.CreateTenant(ctx, args[0])
				if err != nil {
					return err
				}
				return g.done("made", made.GetId())
			})
		},
	}
	cmd.AddCommand(add, listing(g, "ls", "List the tenants", (*postrider.Client).Tenants, []string{"Tenant", "Created"}, func(t *adminv1.Tenant) []any {
		return []any{t.GetId(), when(t.GetCreatedAt().AsTime())}
	}))
	return cmd
}

func newKey(g *globals) *cobra.Command {
	var tenant string
	cmd := &cobra.Command{Use: "key COMMAND", Short: "List, make and revoke API keys", Args: noSuchCommand, RunE: help}
	revoke := &cobra.Command{
		Use: "revoke KEY", Short: "End an API key, by its id, on every host within seconds", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				if err := c.RevokeAPIKey(ctx, args[0]); err != nil {
					return err
				}
				return g.done("revoked", args[0])
			})
		},
	}
	keys := func(c *postrider.Client, ctx context.Context) ([]*adminv1.APIKey, error) {
		return c.APIKeys(ctx, tenant)
	}
	list := listing(g, "ls", "List API keys, without their secrets", keys, []string{"Key", "Tenant", "Name", "Role", "Created", "Expires", "Revoked"},
		func(k *adminv1.APIKey) []any {
			return []any{
				k.GetId(), k.GetTenant(), k.GetName(), strings.ToLower(strings.TrimPrefix(k.GetRole().String(), "ROLE_")),
				when(k.GetCreatedAt().AsTime()), when(k.GetExpiresAt().AsTime()), when(k.GetRevokedAt().AsTime()),
			}
		})
	list.Flags().StringVar(&tenant, "tenant", "", "of this tenant; default is your own")
	cmd.AddCommand(newKeyAdd(g), list, revoke)
	return cmd
}

func newKeyAdd(g *globals) *cobra.Command {
	req := &adminv1.CreateAPIKeyRequest{}
	var role string
	var life time.Duration
	cmd := &cobra.Command{
		Use: "add NAME", Short: "Make an API key and print its secret, which is told once", Args: cobra.ExactArgs(1),
		Example: "  postrider admin key add billing --role write --expires-in 720h",
		RunE: func(cmd *cobra.Command, args []string) error {
			n, ok := adminv1.Role_value["ROLE_"+strings.ToUpper(role)]
			if !ok || n == 0 {
				return fmt.Errorf("%w: --role is read, write or admin, not %q", ErrUsage, role)
			}
			req.Name, req.Role = args[0], adminv1.Role(n)
			if life != 0 {
				req.ExpiresAt = timestamppb.New(clock.Real{}.Now().Add(life))
			}
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				made, err := c.CreateAPIKey(ctx, req)
				if err != nil {
					return err
				}
				if g.output == "json" {
					return g.printJSON(rawProto(made))
				}
				_, err = fmt.Fprintf(g.Out, "key %s\nsecret %s\n", made.GetKey().GetId(), made.GetSecret())
				return err
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&role, "role", "write", "what it may do: read, write or admin")
	f.StringVar(&req.Tenant, "tenant", "", "for this tenant; default is your own")
	f.DurationVar(&life, "expires-in", 0, "when it ends; default is never")
	return cmd
}

// listing is a command that prints all of something.
func listing[T proto.Message](
	g *globals, use, short string, all func(*postrider.Client, context.Context) ([]T, error), header []string, row func(T) []any,
) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				list, err := all(c, ctx)
				if err != nil {
					return err
				}
				rows := make([][]any, 0, len(list))
				for _, item := range list {
					if g.output == "json" {
						if err := g.printJSON(rawProto(item)); err != nil {
							return err
						}
						continue
					}
					rows = append(rows, row(item))
				}
				if g.output == "json" {
					return nil
				}
				return g.printTable("there is none", header, rows)
			})
		},
	}
}
