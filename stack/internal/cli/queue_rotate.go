package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	postrider "postrider.dev/sdk"
)

func newQueueRotate(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "rotate-key QUEUE", Short: "Give an encrypted queue a new data key", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				done, err := c.RotateKey(ctx, args[0])
				if err != nil {
					return err
				}
				if g.output == "json" {
					return g.printJSON(rawProto(done))
				}
				_, err = fmt.Fprintf(g.Out, "%s is sealed with key %d from version %d on\n", args[0], done.GetKeyId(), done.GetConfigVersion())
				return err
			})
		},
	}
}
