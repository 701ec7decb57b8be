package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

func newDLQPurge(g *globals) *cobra.Command {
	req := &queuev1.PurgeDeadLettersRequest{}
	var before string
	cmd := &cobra.Command{
		Use:   "purge QUEUE [ID...]",
		Short: "Delete dead letters for good: those named, a group's, or all",
		Example: `  postrider dlq purge orders --group billing --failed-before 2026-01-31T00:00:00Z
  postrider dlq purge orders --all --include-redriven`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Queue, req.Ids = args[0], args[1:]
			if err := checkPurge(req, before); err != nil {
				return err
			}
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				done, err := purge(ctx, c, req)
				if err != nil {
					return err
				}
				if g.output == "json" {
					return g.printJSON(rawProto(done))
				}
				_, err = fmt.Fprintf(g.Out, "purged %d, redriven and kept %d, not found %d\n", done.GetPurged(), done.GetAlreadyRedriven(), len(done.GetNotFound()))
				return err
			})
		},
	}
	cmd.Flags().StringVarP(&req.Group, "group", "g", "", "this group's")
	cmd.Flags().BoolVar(&req.All, "all", false, "all of the queue, of every group")
	cmd.Flags().StringVar(&before, "failed-before", "", "with --group or --all: only those that failed before this time (RFC 3339)")
	cmd.Flags().BoolVar(&req.IncludeRedriven, "include-redriven", false, "also those that were redriven")
	cmd.Flags().Int32Var(&req.Limit, "limit", 0, "with --group or --all: at most this many, the oldest first, 1 to 1,000 (default: every one)")
	return cmd
}

func checkPurge(req *queuev1.PurgeDeadLettersRequest, before string) error {
	ways := 0
	for _, way := range []bool{len(req.GetIds()) > 0, req.GetGroup() != "", req.GetAll()} {
		if way {
			ways++
		}
	}
	switch {
	case ways != 1:
		return fmt.Errorf("%w: name dead letters, or a --group, or --all", ErrUsage)
	case len(req.GetIds()) > 0 && (before != "" || req.GetLimit() != 0):
		return fmt.Errorf("%w: --failed-before and --limit go with --group or --all", ErrUsage)
	case before != "":
		at, err := time.Parse(time.RFC3339, before)
		if err != nil {
			return fmt.Errorf("%w: --failed-before is a time like 2026-01-31T09:00:00Z", ErrUsage)
		}
		req.FailedBefore = timestamppb.New(at)
	}
	return nil
}

// purge asks until nothing is left, or once if there is a limit.
func purge(ctx context.Context, c *postrider.Client, req *queuev1.PurgeDeadLettersRequest) (*queuev1.PurgeDeadLettersResponse, error) {
	sum := &queuev1.PurgeDeadLettersResponse{}
	for {
		done, err := c.PurgeAs(ctx, req)
		if err != nil {
			if sum.GetPurged() > 0 {
				err = fmt.Errorf("after %d were purged: %w", sum.GetPurged(), err)
			}
			return nil, err
		}
		sum.Purged += done.GetPurged()
		sum.AlreadyRedriven, sum.NotFound, sum.More = done.GetAlreadyRedriven(), done.GetNotFound(), done.GetMore()
		if !done.GetMore() || req.GetLimit() != 0 {
			return sum, nil
		}
	}
}
