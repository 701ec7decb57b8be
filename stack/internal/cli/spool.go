package cli

import (
	"context"

	"github.com/spf13/cobra"

	postrider "postrider.dev/sdk"
)

func newSpool(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "spool", Short: "Show what the hosts keep on disk for the database", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				spools, err := c.Spools(ctx)
				if err != nil {
					return err
				}
				rows := [][]any{}
				for _, s := range spools {
					if g.output == "json" {
						if err := g.printJSON(rawProto(s)); err != nil {
							return err
						}
						continue
					}
					oldest := ""
					if s.GetOldestAt() != nil {
						oldest = when(s.GetOldestAt().AsTime())
					}
					rows = append(rows, []any{
						s.GetHost(), s.GetAddress(), s.GetState(), s.GetReason(), s.GetRecords(), s.GetBlocked(), oldest, bytesText(s.GetBytes()), bytesText(s.GetMaxBytes()),
						s.GetRefused(), s.GetDamage(),
					})
				}
				if g.output == "json" {
					return nil
				}
				header := []string{"Host", "Address", "State", "Reason", "Requests", "Blocked", "Oldest", "Size", "Most", "Refused", "Damage"}
				return g.printTable("no dispatcher is in reach", header, rows)
			})
		},
	}
}
