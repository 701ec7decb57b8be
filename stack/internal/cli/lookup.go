package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

func newLookup(g *globals) *cobra.Command {
	var partition, clientID, group string
	var trace bool
	cmd := &cobra.Command{
		Use:   "lookup QUEUE [MESSAGE]",
		Short: "Show a message by its id, its pending id, or your own name for it",
		Example: `  postrider lookup reminders p_9hCFSBzVDWvMWoTk4zDJq2
  postrider lookup orders --partition customer-1 --client-id order-8
  postrider lookup orders K1bqHTPQMZ9cPYsJ2vCk --trace`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 2) == (clientID != "") || len(args) == 2 && partition != "" {
				return fmt.Errorf("%w: name a message, or a --client-id with its --partition", ErrUsage)
			}
			if group != "" && !trace {
				return fmt.Errorf("%w: --group goes with --trace", ErrUsage)
			}
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				var m *queuev1.LookupMessageResponse
				var err error
				switch {
				case len(args) == 2 && trace:
					m, err = c.Trace(ctx, args[0], args[1], group)
				case len(args) == 2:
					m, err = c.LookupID(ctx, args[0], args[1])
				default:
					m, err = c.Lookup(ctx, args[0], partition, clientID)
					if err == nil && trace {
						m, err = c.Trace(ctx, args[0], m.GetMessageId(), group)
					}
				}
				if err == nil && trace {
					err = moreEvents(ctx, c, args[0], group, m)
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
	f.BoolVarP(&trace, "trace", "t", false, "also where it stands in each group, and what was recorded of it")
	f.StringVar(&group, "group", "", "with --trace: only this group")
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
	if err := g.printTraces(m.GetTraces()); err != nil {
		return err
	}
	if err := g.printEvents(m.GetTraceEvents()); err != nil {
		return err
	}
	if m.GetTrimmed() {
		_, err := fmt.Fprintf(g.Out, "message %s was trimmed from offset %d\n", m.GetMessageId(), m.GetOffset())
		return err
	}
	_, err := fmt.Fprintf(g.Out, "message %s of partition %s %s\n\n%s\n", m.GetMessageId(), m.GetPartition(), where, m.GetPayload())
	return err
}

func (g *globals) printTraces(traces []*queuev1.MessageTrace) error {
	if len(traces) == 0 {
		return nil
	}
	rows := [][]any{}
	for _, t := range traces {
		state := strings.ToLower(strings.TrimPrefix(t.GetState().String(), "TRACE_STATE_"))
		rows = append(rows, []any{t.GetGroup(), strings.ReplaceAll(state, "_", " "), t.GetFailures(), traceDetail(t)})
	}
	return g.printTable("", []string{"Group", "State", "Failures", ""}, rows)
}

// traceDetail says what there is to say of a state.
func traceDetail(t *queuev1.MessageTrace) string {
	var parts []string
	switch t.GetState() {
	case queuev1.TraceState_TRACE_STATE_LEASED:
		parts = append(parts, fmt.Sprintf("attempt %d of %q until %s", t.GetAttempt(), t.GetConsumer(), when(t.GetLeaseExpiresAt().AsTime())))
	case queuev1.TraceState_TRACE_STATE_WAITING:
		parts = append(parts, "until "+when(t.GetAvailableAt().AsTime()))
	case queuev1.TraceState_TRACE_STATE_BLOCKED:
		parts = append(parts, "by "+t.GetBlockedBy())
	default:
	}
	if t.GetLastError() != "" {
		parts = append(parts, "failed with: "+t.GetLastError())
	}
	if t.GetDeadLetterId() != "" {
		parts = append(parts, fmt.Sprintf("dead letter %s: %s", t.GetDeadLetterId(), t.GetDeadLetterReason()))
	}
	return strings.Join(parts, "; ")
}
