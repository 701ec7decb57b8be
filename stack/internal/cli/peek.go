package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

func newPeek(g *globals) *cobra.Command {
	var look postrider.Look
	cmd := &cobra.Command{
		Use:   "peek QUEUE",
		Short: "Show messages as they are in the log; nothing is leased and nothing changes",
		Example: `  postrider peek orders
  postrider peek orders --from latest --limit 3
  postrider peek orders --from 1200 --partition customer-7`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if look.Partition != "" && cmd.Flags().Changed("shard") {
				return fmt.Errorf("%w: --partition says the shard", ErrUsage)
			}
			if look.Partition == "" && cmd.Flags().Changed("priority") {
				return fmt.Errorf("%w: --priority goes with --partition", ErrUsage)
			}
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				seen, err := c.Peek(ctx, args[0], look)
				if err != nil {
					return err
				}
				return g.printPeeked(seen)
			})
		},
	}
	f := cmd.Flags()
	f.IntVar(&look.Shard, "shard", 0, "index of the shard")
	f.StringVarP(&look.Partition, "partition", "p", "", "only this partition")
	f.Int32Var(&look.Priority, "priority", 0, "with --partition: in which lane")
	f.StringVar(&look.From, "from", "earliest", "earliest, latest for the last ones there are, or an offset")
	f.IntVarP(&look.Limit, "limit", "n", 10, "most messages to show, up to 1000")
	f.IntVar(&look.MaxBytes, "max-bytes", 0, "most bytes to show (default 4 MiB); one message is shown whatever its size")
	return cmd
}

func (g *globals) printPeeked(seen *queuev1.PeekMessagesResponse) error {
	if g.output == "json" {
		messages := []any{}
		for _, m := range seen.GetMessages() {
			messages = append(messages, map[string]any{"message": rawProto(m), "payload": payloadJSON(m.GetPayload())})
		}
		seen.Messages = nil
		return g.printJSON(map[string]any{"messages": messages, "look": rawProto(seen)})
	}
	rows := [][]any{}
	for _, m := range seen.GetMessages() {
		rows = append(rows, []any{m.GetOffset(), m.GetMessageId(), m.GetPartition(), m.GetClientId(), when(m.GetCreatedAt().AsTime()), brief(m.GetPayload(), 60)})
	}
	if err := g.printTable("no messages there", []string{"Offset", "Message", "Partition", "Client id", "Since", "Payload"}, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(g.Out, "shard %d keeps offsets %d to %d; looked at %d to %d", seen.GetShard(), seen.GetTail(), seen.GetHead(), seen.GetFromOffset(), seen.GetNextOffset())
	if err == nil && seen.GetNextOffset() < seen.GetHead() {
		_, err = fmt.Fprintf(g.Out, ", go on with --from %d", seen.GetNextOffset())
	}
	if err == nil {
		_, err = fmt.Fprintln(g.Out)
	}
	return err
}
