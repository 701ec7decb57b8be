package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	postrider "postrider.dev/sdk"
)

func newSubscribe(g *globals) *cobra.Command {
	var o postrider.SubscribeOptions
	var headers []string
	var most int
	cmd := &cobra.Command{
		Use:   "subscribe QUEUE",
		Short: "Print every message of a queue as it is committed, without leasing any, until Ctrl-C",
		Example: `  postrider subscribe orders
  postrider subscribe orders --from earliest --partition customer-1 --header event=made --count 10`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if most < 0 {
				return fmt.Errorf("%w: --count must not be negative", ErrUsage)
			}
			if o.From != "" && o.Resume != "" {
				return fmt.Errorf("%w: --from or --resume, not both", ErrUsage)
			}
			if o.Headers, err = parseHeaders(headers); err != nil {
				return err
			}
			return g.subscribe(cmd.Context(), args[0], o, most)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.From, "from", "", "where to begin: latest (default), earliest, an RFC 3339 time, or an offset of each shard, with commas between")
	f.StringVar(&o.Resume, "resume", "", "go on behind the message that was printed with this token")
	f.StringArrayVarP(&o.Partitions, "partition", "p", nil, "only this partition; may be repeated")
	f.StringArrayVarP(&headers, "header", "H", nil, "only messages with this header: name=value; may be repeated")
	f.IntVarP(&most, "count", "n", 0, "end after so many messages; 0: never")
	return cmd
}

// errEnough ends a subscription that has printed what was asked for.
var errEnough = errors.New("enough")

// subscribe prints until it has printed most messages, if that is not 0, or ctx ends.
func (g *globals) subscribe(ctx context.Context, queue string, o postrider.SubscribeOptions, most int) error {
	c, err := g.client() //nolint:contextcheck // it connects when it is first used
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // the process ends
	if err := g.reach(ctx, c); err != nil {
		return err
	}
	say := func(text string) { _, _ = fmt.Fprintln(g.Err, text) } // nobody to tell if that fails
	o.OnError = func(err error) { say("going on: " + err.Error()) }
	var failed error
	o.OnGap = func(gap postrider.Gap) {
		if g.output == "json" {
			failed = g.printJSON(map[string]any{"gap": map[string]any{"shard": gap.Shard, "from": gap.From, "to": gap.To, "why": "retention"}, "resume": gap.Resume})
			return
		}
		say(fmt.Sprintf("gap: offsets %d to %d of shard %d are gone", gap.From, gap.To-1, gap.Shard))
	}
	printed := 0
	err = c.Subscribe(ctx, queue, func(_ context.Context, m *postrider.SubscribedMessage) error {
		if err := errors.Join(failed, g.printSubscribed(m)); err != nil {
			return err
		}
		if printed++; printed == most {
			return errEnough
		}
		return nil
	}, o)
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func (g *globals) printSubscribed(m *postrider.SubscribedMessage) error {
	if g.output == "json" {
		return g.printJSON(map[string]any{
			"message_id": m.MessageID, "partition": m.Partition, "offset": m.Offset, "shard": m.Shard, "payload": payloadJSON(m.Payload),
			"content_type": m.ContentType, "headers": m.Headers, "client_id": m.ClientID, "created_at": m.CreatedAt, "resume": m.Resume,
			"priority": m.Priority,
		})
	}
	_, err := fmt.Fprintf(g.Out, "%s  %d  %s  %s\n", when(m.CreatedAt), m.Offset, m.Partition, brief(m.Payload, 120))
	return err
}
