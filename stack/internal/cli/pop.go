package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/pkg/clock"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

func newPop(g *globals) *cobra.Command {
	o := postrider.PopOptions{Batch: 1}
	var ack bool
	var mode string
	cmd := &cobra.Command{
		Use:   "pop QUEUE",
		Short: "Lease messages from a queue and print them",
		Example: `  postrider pop orders --wait 30s
  postrider pop orders --group billing --batch 10 --ack`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.Mode, err = modeNamed(mode); err != nil {
				return err
			}
			var closed *string // why nothing is handed out
			o.InMaintenance = func(reason string) { closed = &reason }
			return g.with(cmd.Context(), o.Wait, func(ctx context.Context, c *postrider.Client) error {
				lease, err := c.Pop(ctx, args[0], o)
				if err != nil {
					return err
				}
				if lease == nil && closed != nil {
					return g.printClosed(*closed)
				}
				if ack && lease != nil {
					if _, err := lease.Ack(ctx); err != nil {
						return err
					}
				}
				return g.printLease(lease, ack)
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&o.Group, "group", "g", "", "consumer group (default \"default\")")
	f.IntVarP(&o.Batch, "batch", "n", 1, "most messages, 1 to 1,000")
	f.DurationVarP(&o.Wait, "wait", "w", 0, "how long to wait for the first message, up to 60s")
	f.StringVarP(&o.Partition, "partition", "p", "", "only this partition")
	f.DurationVar(&o.Lease, "lease", 0, "how long the messages are held; default is the queue's")
	f.StringVar(&o.Start, "start", "", "where a new group begins: earliest (default), latest, or an RFC 3339 time")
	f.StringVar(&mode, "mode", "", "how a new group shares partitions: ordered (default) or shared")
	f.BoolVar(&ack, "ack", false, "ack what was popped at once")
	return cmd
}

// modeNamed reads --mode.
func modeNamed(mode string) (queuev1.GroupMode, error) {
	switch mode {
	case "":
		return queuev1.GroupMode_GROUP_MODE_UNSPECIFIED, nil
	case "ordered":
		return queuev1.GroupMode_GROUP_MODE_ORDERED, nil
	case "shared":
		return queuev1.GroupMode_GROUP_MODE_SHARED, nil
	}
	return 0, fmt.Errorf("%w: --mode is ordered or shared, not %q", ErrUsage, mode)
}

// printClosed says that pops are in maintenance, and why.
func (g *globals) printClosed(reason string) error {
	if g.output == "json" {
		return g.printJSON(map[string]any{"lease": nil, "deliveries": []any{}, "pop_maintenance": map[string]string{"reason": reason}})
	}
	if reason != "" {
		reason = ": " + reason
	}
	_, err := fmt.Fprintf(g.Out, "nothing is handed out, pops are in maintenance%s\n", reason)
	return err
}

func (g *globals) printLease(l *postrider.Lease, acked bool) error {
	if l == nil {
		if g.output == "json" {
			return g.printJSON(map[string]any{"lease": nil, "deliveries": []any{}})
		}
		_, err := fmt.Fprintln(g.Out, "nothing ready")
		return err
	}
	if g.output == "json" {
		list := make([]map[string]any, len(l.Deliveries))
		for i, d := range l.Deliveries {
			list[i] = map[string]any{
				"message_id": d.MessageID, "partition": d.Partition, "offset": d.Offset, "payload": payloadJSON(d.Payload),
				"content_type": d.ContentType, "headers": d.Headers, "client_id": d.ClientID, "attempt": d.Attempt, "created_at": d.CreatedAt,
				"priority": d.Priority,
			}
		}
		out := map[string]any{"lease": l.Token, "acked": acked, "deliveries": list}
		if len(l.Trimmed) > 0 {
			out["trimmed"] = l.Trimmed
		}
		return g.printJSON(out)
	}
	for _, lost := range l.Trimmed {
		_, _ = fmt.Fprintf(g.Out, "retention took %d messages this group had not settled; shard %s begins at offset %d\n",
			lost.GetMessages(), lost.GetShardId(), lost.GetFirstAvailable())
	}
	rows := make([][]any, len(l.Deliveries))
	for i, d := range l.Deliveries {
		rows[i] = []any{d.MessageID, d.Partition, d.Offset, d.Attempt, when(d.CreatedAt), brief(d.Payload, 60)}
	}
	if err := g.printTable("", []string{"Message", "Partition", "Offset", "Attempt", "Created", "Payload"}, rows); err != nil {
		return err
	}
	if acked {
		_, err := fmt.Fprintln(g.Out, "\nacked")
		return err
	}
	_, err := fmt.Fprintf(g.Out, "\nlease %s\n(held for %s; settle with: postrider ack %s LEASE)\n", l.Token, l.TrustedUntil().Sub(clock.Real{}.Now()).Round(time.Second), l.Queue)
	return err
}

func newAck(g *globals) *cobra.Command {
	var nack, reject bool
	var delay time.Duration
	var reason string
	cmd := &cobra.Command{
		Use:   "ack QUEUE LEASE [MESSAGE...]",
		Short: "Settle messages of a lease; without MESSAGE all of them",
		Example: `  postrider ack orders LEASE
  postrider ack orders LEASE MESSAGE --nack --delay 1m --reason "no stock"`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &queuev1.AckRequest{Queue: args[0], Lease: args[1], AckRest: len(args) == 2}
			action := queuev1.AckAction_ACK_ACTION_ACK
			switch {
			case nack && reject:
				return fmt.Errorf("%w: --nack or --reject, not both", ErrUsage)
			case cmd.Flags().Changed("delay") && !nack:
				return fmt.Errorf("%w: --delay goes with --nack", ErrUsage)
			case cmd.Flags().Changed("reason") && !nack && !reject:
				return fmt.Errorf("%w: --reason goes with --nack or --reject", ErrUsage)
			case (nack || reject) && len(args) == 2:
				return fmt.Errorf("%w: name the messages to --nack or --reject", ErrUsage)
			case nack:
				action = queuev1.AckAction_ACK_ACTION_NACK
			case reject:
				action = queuev1.AckAction_ACK_ACTION_REJECT
			}
			for _, id := range args[2:] {
				s := &queuev1.Settlement{MessageId: id, Action: action, Reason: reason}
				if cmd.Flags().Changed("delay") {
					s.Delay = durationpb.New(delay)
				}
				req.Settlements = append(req.Settlements, s)
			}
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error { return g.ack(ctx, c, req) })
		},
	}
	f := cmd.Flags()
	f.BoolVar(&nack, "nack", false, "failed: hand out again later")
	f.BoolVar(&reject, "reject", false, "send to the dead letters")
	f.DurationVar(&delay, "delay", 0, "with --nack: not before this long; default is the queue's backoff")
	f.StringVar(&reason, "reason", "", "with --nack or --reject: kept with the message")
	return cmd
}

func (g *globals) ack(ctx context.Context, c *postrider.Client, req *queuev1.AckRequest) error {
	resp, err := c.Settle(ctx, req)
	if err != nil {
		return err
	}
	refused := 0
	rows := make([][]any, 0, len(resp.GetResults()))
	for _, r := range resp.GetResults() {
		text := r.GetError().GetMessage()
		if r.GetError() != nil {
			refused++
			text = r.GetError().GetCode() + ": " + text
		}
		rows = append(rows, []any{r.GetMessageId(), ackWord(r.GetStatus()), text})
	}
	switch {
	case g.output == "json":
		err = g.printJSON(rawProto(resp))
	case req.GetAckRest():
		_, err = fmt.Fprintf(g.Out, "acked %d messages\n", resp.GetRestAcked())
	default:
		err = g.printTable("", []string{"Message", "Result", ""}, rows)
	}
	if err == nil && refused > 0 {
		err = fmt.Errorf("%d of %d settlements were refused", refused, len(rows))
	}
	return err
}

func ackWord(s queuev1.AckStatus) string {
	switch s {
	case queuev1.AckStatus_ACK_STATUS_SETTLED:
		return "settled"
	case queuev1.AckStatus_ACK_STATUS_ALREADY_SETTLED:
		return "already settled"
	case queuev1.AckStatus_ACK_STATUS_REFUSED:
		return "refused"
	case queuev1.AckStatus_ACK_STATUS_DEAD_LETTERED:
		return "dead letter"
	case queuev1.AckStatus_ACK_STATUS_RETURNED:
		return "returned"
	case queuev1.AckStatus_ACK_STATUS_UNSPECIFIED:
		return "unknown"
	default:
		return s.String()
	}
}
