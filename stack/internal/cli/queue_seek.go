package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

func newQueueSeek(g *globals) *cobra.Command {
	var to, partition string
	cmd := &cobra.Command{
		Use:   "seek QUEUE GROUP --to PLACE",
		Short: "Move a group: back to get messages again, forward to skip them; what is leased is fenced off",
		Example: `  postrider queue seek orders billing --to earliest
  postrider queue seek orders billing --to 2026-01-31T09:00:00Z --partition customer-7
  postrider queue seek orders billing --to 1200,1187`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			place := placeOf(to)
			place.Partition = partition
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				moved, err := c.Seek(ctx, args[0], args[1], place)
				if err != nil {
					return err
				}
				if g.output == "json" {
					return g.printJSON(rawProto(moved))
				}
				return g.printMoved(moved)
			})
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "earliest, latest, an RFC 3339 time, or an offset for each shard, with commas between")
	cmd.Flags().StringVar(&partition, "partition", "", "only this partition")
	if err := cmd.MarkFlagRequired("to"); err != nil {
		panic(err) // there is no such flag
	}
	return cmd
}

// placeOf takes numbers for offsets, and leaves the rest to the server.
func placeOf(text string) postrider.Place {
	var offsets []int64
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(part), 10, 64)
		if err != nil {
			return postrider.Place{At: text}
		}
		offsets = append(offsets, n)
	}
	return postrider.Place{Offsets: offsets}
}

func (g *globals) printMoved(moved *queuev1.SeekGroupResponse) error {
	rows := [][]any{}
	for _, p := range moved.GetPositions() {
		rows = append(rows, []any{p.GetShardId(), p.GetFrom(), p.GetTo()})
	}
	if err := g.printTable("no shards", []string{"Shard", "From", "To"}, rows); err != nil {
		return err
	}
	_, err := fmt.Fprintf(g.Out, "%d leases fenced, of %d messages\n", moved.GetFencedLeases(), moved.GetFencedMessages())
	return err
}
