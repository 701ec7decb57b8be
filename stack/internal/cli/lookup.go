package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

func newLookup(g *globals) *cobra.Command {
	var partition, clientID string
	cmd := &cobra.Command{
		Use:   "lookup QUEUE [MESSAGE]",
		Short: "Show a message by its id, its pending id, or your own name for it",
		Example: `  postrider lookup reminders p_9hCFSBzVDWvMWoTk4zDJq2
  postrider lookup orders --partition customer-1 --client-id order-8`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 2) == (clientID != "") || len(args) == 2 && partition != "" {
				return fmt.Errorf("%w: name a message, or a --client-id with its --partition", ErrUsage)
			}
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				var m *queuev1.LookupMessageResponse
				var err error
				if len(args) == 2 {
					m, err = c.LookupID(ctx, args[0], args[1])
				} else {
					m, err = c.Lookup(ctx, args[0], partition, clientID)
				}
				if err != nil {
					return err
				}
				return g.printFound(m)
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&partition, "partition", "p", "", "with --client-id: its partition (default \"default\")")
	f.StringVar(&clientID, "client-id", "", "the name that its producer gave it")
	return cmd
}

func (g *globals) printFound(m *queuev1.LookupMessageResponse) error {
	if g.output == "json" {
		return g.printJSON(map[string]any{"message": rawProto(m), "payload": payloadJSON(m.GetPayload())})
	}
	where := fmt.Sprintf("at offset %d, since %s", m.GetOffset(), when(m.GetCreatedAt().AsTime()))
	if m.GetAvailableAt() != nil {
		where = "waits until " + m.GetAvailableAt().AsTime().Format(time.RFC3339)
	}
	_, err := fmt.Fprintf(g.Out, "message %s of partition %s %s\n\n%s\n", m.GetMessageId(), m.GetPartition(), where, m.GetPayload())
	return err
}
