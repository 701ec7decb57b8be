package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"postrider.dev/pkg/clock"
	postrider "postrider.dev/sdk"
)

func newRenew(g *globals) *cobra.Command {
	var length time.Duration
	cmd := &cobra.Command{
		Use: "renew QUEUE LEASE", Short: "Hold the messages of a lease for longer", Args: cobra.ExactArgs(2),
		Example: "  postrider renew orders LEASE --lease 5m",
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				lease := c.Held(args[0], args[1])
				if err := lease.Renew(ctx, length); err != nil {
					return err
				}
				held := lease.TrustedUntil().Sub(clock.Real{}.Now())
				if g.output == "json" {
					return g.printJSON(map[string]any{"held_ms": held.Milliseconds()})
				}
				_, err := fmt.Fprintln(g.Out, "held for", held.Round(time.Second))
				return err
			})
		},
	}
	cmd.Flags().DurationVar(&length, "lease", 0, "how long from now, never less than it has; default is the queue's")
	return cmd
}

func newRelease(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "release QUEUE LEASE [MESSAGE...]", Short: "Give messages of a lease back as if they had not been popped; without MESSAGE all of them",
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			back := make([]*postrider.Delivery, 0, len(args)-2)
			for _, id := range args[2:] {
				back = append(back, &postrider.Delivery{MessageID: id})
			}
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				if err := c.Held(args[0], args[1]).Release(ctx, back...); err != nil {
					return err
				}
				return g.done("released", args[1])
			})
		},
	}
}

// done says what was done to what.
func (g *globals) done(what, name string) error {
	if g.output == "json" {
		return g.printJSON(map[string]string{what: name})
	}
	_, err := fmt.Fprintln(g.Out, what, name)
	return err
}
