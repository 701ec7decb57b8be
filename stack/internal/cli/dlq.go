package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

func newDLQ(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "dlq COMMAND", Short: "List, show, redrive and purge dead letters", Args: noSuchCommand, RunE: help}
	cmd.AddCommand(newDLQList(g), newDLQShow(g), newDLQRedrive(g), newDLQPurge(g))
	return cmd
}

func newDLQList(g *globals) *cobra.Command {
	var group string
	cmd := &cobra.Command{
		Use: "ls QUEUE", Short: "List a queue's dead letters, oldest first", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				rows := [][]any{}
				for d, err := range c.DeadLetters(ctx, args[0], group) {
					if err != nil {
						return err
					}
					if g.output == "json" {
						if err := g.printJSON(rawProto(d)); err != nil {
							return err
						}
						continue
					}
					rows = append(rows, []any{
						d.GetId(), d.GetGroup(), d.GetPartition(), d.GetOffset(), d.GetAttempts(), when(d.GetFailedAt().AsTime()),
						bytesText(int64(d.GetPayloadBytes())), brief([]byte(d.GetReason()), 50),
					})
				}
				if g.output == "json" {
					return nil
				}
				return g.printTable("no dead letters", []string{"Id", "Group", "Partition", "Offset", "Attempts", "Failed", "Size", "Reason"}, rows)
			})
		},
	}
	cmd.Flags().StringVarP(&group, "group", "g", "", "only this group's")
	return cmd
}

func newDLQShow(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "show QUEUE ID", Short: "Show a dead letter with its payload", Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				d, err := c.DeadLetter(ctx, args[0], args[1])
				if err != nil {
					return err
				}
				if g.output == "json" {
					return g.printJSON(map[string]any{"dead_letter": rawProto(d), "payload": payloadJSON(d.GetPayload())})
				}
				_, err = fmt.Fprintf(g.Out, "message %s of partition %s at offset %d\ngroup %s, %d attempts, failed %s\nreason: %s\n\n%s\n",
					d.GetMessageId(), d.GetPartition(), d.GetOffset(), d.GetGroup(), d.GetAttempts(), when(d.GetFailedAt().AsTime()), d.GetReason(), d.GetPayload())
				return err
			})
		},
	}
}

func newDLQRedrive(g *globals) *cobra.Command {
	var group string
	var limit int32
	cmd := &cobra.Command{
		Use:     "redrive QUEUE [ID...]",
		Short:   "Append dead letters to their queue again: those named, or a group's",
		Example: `  postrider dlq redrive orders --group billing --limit 100`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) > 1) == (group != "") {
				return fmt.Errorf("%w: name dead letters, or a --group", ErrUsage)
			}
			req := &queuev1.RedriveDeadLettersRequest{Queue: args[0], Ids: args[1:], Group: group}
			if group != "" {
				req.Limit = limit
			}
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				resp, err := c.RedriveAs(ctx, req)
				if err != nil {
					return err
				}
				if g.output == "json" {
					return g.printJSON(rawProto(resp))
				}
				_, err = fmt.Fprintf(g.Out, "redriven %d, redriven before %d, not found %d\n",
					resp.GetRedriven(), resp.GetAlreadyRedriven(), len(resp.GetNotFound()))
				return err
			})
		},
	}
	cmd.Flags().StringVarP(&group, "group", "g", "", "all of this group's, oldest first")
	cmd.Flags().Int32Var(&limit, "limit", 100, "with --group: at most this many, 1 to 1,000")
	return cmd
}
