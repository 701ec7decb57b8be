package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

func newQueuePartitions(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "partitions QUEUE", Short: "List the partitions that have messages in the log, by name", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				rows := [][]any{}
				for p, err := range c.Partitions(ctx, args[0]) {
					if err != nil {
						return err
					}
					if g.output == "json" {
						if err := g.printJSON(rawProto(p)); err != nil {
							return err
						}
						continue
					}
					rows = append(rows, []any{p.GetName(), p.GetShardId(), p.GetPriority(), p.GetFirstOffset(), p.GetLastOffset(), when(p.GetLastSeenAt().AsTime())})
				}
				if g.output == "json" {
					return nil
				}
				return g.printTable("no partitions", []string{"Partition", "Shard", "Priority", "First", "Last", "Last seen"}, rows)
			})
		},
	}
}

func newQueueGroup(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "group COMMAND", Short: "Make and remove consumer groups", Args: noSuchCommand, RunE: help}
	remove := &cobra.Command{
		Use: "rm QUEUE GROUP", Short: "Delete a group's state; its leases are worth nothing afterwards", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				if err := c.DeleteGroup(ctx, args[0], args[1]); err != nil {
					return err
				}
				return g.done("deleted", args[1])
			})
		},
	}
	cmd.AddCommand(newQueueGroupAdd(g), remove)
	return cmd
}

func newQueueGroupAdd(g *globals) *cobra.Command {
	var mode, onFailure string
	o := &queuev1.GroupOptions{}
	cmd := &cobra.Command{
		Use: "add QUEUE GROUP", Short: "Make a group before its first pop, so that a start of latest means now", Args: cobra.ExactArgs(2),
		Example: "  postrider queue group add orders billing --start latest --mode shared",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if o.Mode, err = modeNamed(mode); err != nil {
				return err
			}
			switch onFailure {
			case "":
			case "block":
				o.OnFailure = queuev1.OnFailure_ON_FAILURE_BLOCK
			case "skip":
				o.OnFailure = queuev1.OnFailure_ON_FAILURE_SKIP
			default:
				return fmt.Errorf("%w: --on-failure is block or skip, not %q", ErrUsage, onFailure)
			}
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				group, err := c.CreateGroup(ctx, args[0], args[1], o)
				if err != nil {
					return err
				}
				if g.output == "json" {
					return g.printJSON(rawProto(group))
				}
				return g.done("made", group.GetName())
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Start, "start", "", "where it begins: earliest (default), latest, or an RFC 3339 time")
	f.StringVar(&mode, "mode", "", "how it shares partitions: ordered (default) or shared")
	f.StringVar(&onFailure, "on-failure", "", "whether a failed message holds up its partition: block (default) or skip")
	return cmd
}
