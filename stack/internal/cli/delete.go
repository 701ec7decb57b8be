package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

func newDelete(g *globals) *cobra.Command {
	var partition, clientID string
	cmd := &cobra.Command{
		Use:   "delete QUEUE [MESSAGE]",
		Short: "Take one message away for everybody, or cancel a delayed one, by its id, its pending id, or your own name for it",
		Example: `  postrider delete orders K1bqHTPQMZ9cPYsJ2vCk
  postrider delete reminders p_9hCFSBzVDWvMWoTk4zDJq2
  postrider delete orders --partition customer-1 --client-id order-8`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 2) == (clientID != "") || len(args) == 2 && partition != "" {
				return fmt.Errorf("%w: name a message, or a --client-id with its --partition", ErrUsage)
			}
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				var done *queuev1.DeleteMessageResponse
				var err error
				if len(args) == 2 {
					done, err = c.DeleteMessage(ctx, args[0], args[1])
				} else {
					done, err = c.DeleteNamed(ctx, args[0], partition, clientID)
				}
				if err != nil {
					return err
				}
				return g.printDeleted(done)
			})
		},
	}
	cmd.Flags().StringVarP(&partition, "partition", "p", "", "with --client-id: its partition (default \"default\")")
	cmd.Flags().StringVar(&clientID, "client-id", "", "the name that its producer gave it")
	return cmd
}

func (g *globals) printDeleted(done *queuev1.DeleteMessageResponse) error {
	if g.output == "json" {
		return g.printJSON(rawProto(done))
	}
	what := "is deleted: no group gets it any more"
	if done.GetCancelled() {
		what = "is cancelled: it never comes"
	}
	_, err := fmt.Fprintf(g.Out, "message %s %s\n", done.GetMessageId(), what)
	return err
}
