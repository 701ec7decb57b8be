package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	postrider "postrider.dev/sdk"
)

func newAdmin(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "admin COMMAND", Short: "Look at the fleet as a whole and change it", Args: noSuchCommand, RunE: help}
	mode := &cobra.Command{Use: "mode COMMAND", Short: "Set a mode of the fleet", Args: noSuchCommand, RunE: help}
	mode.AddCommand(newAdminModeSet(g))
	cmd.AddCommand(newAdminModes(g), mode, newSpool(g), newMesh(g), newNodes(g), newTenant(g), newKey(g))
	return cmd
}

func newAdminModes(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "modes", Short: "Show the modes of the fleet", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				modes, err := c.Modes(ctx)
				if err != nil {
					return err
				}
				return g.printModes(modes...)
			})
		},
	}
}

func newAdminModeSet(g *globals) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:     "set MODE on|off",
		Short:   "Turn a mode on or off for every host",
		Example: `  postrider admin mode set pop_maintenance on --reason "moving the warehouse"`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[1] != "on" && args[1] != "off" {
				return fmt.Errorf("%w: a mode is on or off, not %q", ErrUsage, args[1])
			}
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				mode, err := c.SetMode(ctx, args[0], args[1] == "on", reason)
				if err != nil {
					return err
				}
				return g.printModes(mode)
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for whoever pops")
	return cmd
}

func (g *globals) printModes(modes ...*adminv1.Mode) error {
	rows := [][]any{}
	for _, m := range modes {
		if g.output == "json" {
			if err := g.printJSON(rawProto(m)); err != nil {
				return err
			}
			continue
		}
		state, changed := "off", ""
		if m.GetEnabled() {
			state = "on"
		}
		if m.GetChangedAt() != nil {
			changed = when(m.GetChangedAt().AsTime())
		}
		rows = append(rows, []any{m.GetMode(), state, m.GetReason(), changed, m.GetChangedBy()})
	}
	if g.output == "json" {
		return nil
	}
	return g.printTable("no modes", []string{"Mode", "State", "Reason", "Changed", "By"}, rows)
}
