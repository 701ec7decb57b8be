package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

func newQueue(g *globals) *cobra.Command {
	cmd := &cobra.Command{Use: "queue COMMAND", Short: "List, show, configure and remove queues; make, move and remove groups; rotate keys", Args: noSuchCommand, RunE: help}
	cmd.AddCommand(newQueueList(g), newQueueShow(g), newQueuePartitions(g), newQueueConfigure(g), newQueueGroup(g), newQueueSeek(g), newQueueRotate(g), newQueueRemove(g))
	return cmd
}

func newQueueList(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "ls [PREFIX]", Short: "List queues, by name", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			prefix := strings.Join(args, "")
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				rows := [][]any{}
				for q, err := range c.QueueList(ctx, prefix) {
					if err != nil {
						return err
					}
					if g.output == "json" {
						if err := g.printJSON(rawProto(q)); err != nil {
							return err
						}
						continue
					}
					rows = append(rows, []any{
						q.GetName(), q.GetMessages(), q.GetDepth(), bytesText(q.GetStoredBytes()),
						fmt.Sprintf("%.0f/s", q.GetPushRate()), q.GetGroups(), q.GetDeadLetters(), when(q.GetCreatedAt().AsTime()),
					})
				}
				if g.output == "json" {
					return nil
				}
				return g.printTable("no queues", []string{"Queue", "Messages", "Depth", "Stored", "Push", "Groups", "Dead letters", "Created"}, rows)
			})
		},
	}
}

func newQueueShow(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "show QUEUE", Short: "Show a queue's options, shards and groups", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				q, err := c.Queue(ctx, args[0])
				if err != nil {
					return err
				}
				if g.output == "json" {
					return g.printJSON(rawProto(q))
				}
				return g.printQueue(q)
			})
		},
	}
}

func (g *globals) printQueue(r *queuev1.GetQueueResponse) error {
	q, o := r.GetQueue(), r.GetQueue().GetOptions()
	_, _ = fmt.Fprintf(g.Out, "%s (id %s, configuration %d, created %s)\n", q.GetName(), q.GetId(), q.GetConfigVersion(), when(q.GetCreatedAt().AsTime()))
	_, _ = fmt.Fprintf(g.Out, "lease %s · max-attempts %d · backoff %s to %s · max-message-bytes %d · idempotency-window %s · max-groups %d\n",
		o.GetLease().AsDuration(), o.GetMaxAttempts(), o.GetBackoff().AsDuration(), o.GetBackoffMax().AsDuration(), o.GetMaxMessageBytes(),
		o.GetIdempotencyWindow().AsDuration(), o.GetMaxGroups())
	_, _ = fmt.Fprintf(g.Out, "retention %s · retention-bytes %s · retention-settled %t · expire-after %s · max-queue-bytes %s · max-queue-messages %s · dropped %d\n",
		orNone(o.GetRetention().AsDuration()), orNone(o.GetRetentionBytes()), o.GetRetentionSettled(), o.GetExpireAfter().AsDuration(),
		orNone(o.GetMaxQueueBytes()), orNone(o.GetMaxQueueMessages()), q.GetDropped())
	_, _ = fmt.Fprintf(g.Out, "compression %s · encryption %t · lanes %d · trace %t · delay %s\n\n",
		strings.ToLower(strings.TrimPrefix(o.GetCompression().String(), "COMPRESSION_")), o.GetEncryption(), o.GetLanes(), o.GetTrace(), orNone(o.GetDelay().AsDuration()))
	if q.GetDelayed() > 0 {
		_, _ = fmt.Fprintf(g.Out, "%d delayed messages wait for their time\n\n", q.GetDelayed())
	}
	g.printRoute(r.GetRoute())
	rows := [][]any{}
	for _, s := range r.GetShards() {
		rows = append(rows, []any{s.GetId(), s.GetPriority(), s.GetTail(), s.GetHead(), when(s.GetLastPushAt().AsTime())})
	}
	if err := g.printTable("no shards", []string{"Shard", "Priority", "Tail", "Head", "Last push"}, rows); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(g.Out)
	rows = [][]any{}
	for _, gr := range r.GetGroups() {
		mode := strings.ToLower(strings.TrimPrefix(gr.GetMode().String(), "GROUP_MODE_"))
		rows = append(rows, []any{
			gr.GetName(), mode, gr.GetStart(), gr.GetDepth(), gr.GetLeased(), gr.GetRetrying(), gr.GetLagMessages(), gr.GetDeadLetters(),
			gr.GetTrimmed(), idleText(gr),
		})
	}
	return g.printTable("no groups yet: the first pop of a group creates it",
		[]string{"Group", "Mode", "Start", "Depth", "Leased", "Retrying", "Lag", "Dead letters", "Trimmed", "Last active"}, rows)
}

// printRoute says which host serves pops of the queue, if one does for all.
func (g *globals) printRoute(r *queuev1.Route) {
	switch {
	case r == nil:
	case r.GetHostId() == "":
		_, _ = fmt.Fprintf(g.Out, "routed to a dispatcher that is not online: each host serves it (epoch %d)\n\n", r.GetEpoch())
	default:
		_, _ = fmt.Fprintf(g.Out, "routed to host %s since %s (epoch %d)\n\n", r.GetHostId(), when(r.GetClaimedAt().AsTime()), r.GetEpoch())
	}
}

// orNone is a limit, or that there is none.
func orNone[T ~int64](v T) string {
	if v == 0 {
		return "none"
	}
	return fmt.Sprint(v)
}

// idleText says when a group was used last, and whether retention does not wait for it any more.
func idleText(gr *queuev1.Group) string {
	text := when(gr.GetLastActiveAt().AsTime())
	if gr.GetExpired() {
		text += ", expired"
	}
	return text
}

// queueFlags are the options that can be configured, as flags.
type queueFlags struct {
	lease, backoff, backoffMax, idempotencyWindow   time.Duration
	retention, expireAfter, delay                   time.Duration
	maxAttempts, maxMessageBytes, maxGroups         int32
	shards, lanes                                   int32
	retentionBytes, maxQueueBytes, maxQueueMessages int64
	retentionSettled                                bool
	compression                                     string
	encryption, trace                               bool
	reset                                           []string
}

func newQueueConfigure(g *globals) *cobra.Command {
	var o queueFlags
	cmd := &cobra.Command{
		Use:   "configure QUEUE",
		Short: "Create a queue or change options; what is not named stays as it is",
		Example: `  postrider queue configure orders --max-attempts 3 --lease 1m --reset backoff
  postrider queue configure mail --lanes 3`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			options := o.options(cmd.Flags().Changed)
			if err := o.compress(options); err != nil {
				return err
			}
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				q, err := c.Configure(ctx, args[0], options, o.reset...)
				if err != nil {
					return err
				}
				if g.output == "json" {
					return g.printJSON(rawProto(q))
				}
				_, err = fmt.Fprintf(g.Out, "%s is at configuration %s\n", q.GetName(), strconv.FormatInt(q.GetConfigVersion(), 10))
				return err
			})
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.lease, "lease", 0, "default lease of a pop: 1s to 12h")
	f.Int32Var(&o.maxAttempts, "max-attempts", 0, "failures until a message is a dead letter: 1 to 1,000")
	f.DurationVar(&o.backoff, "backoff", 0, "first delay after a failure, doubling: 0 to 1h")
	f.DurationVar(&o.backoffMax, "backoff-max", 0, "longest delay after a failure: up to 12h")
	f.Int32Var(&o.maxMessageBytes, "max-message-bytes", 0, "largest message: up to 16 MiB")
	f.DurationVar(&o.idempotencyWindow, "idempotency-window", 0, "how long idempotency keys are remembered: 0 (off) to 168h")
	f.Int32Var(&o.maxGroups, "max-groups", 0, "most consumer groups: 1 to 10,000")
	f.Int32Var(&o.shards, "shards", 0, "shards of the log, in each lane: 1 to 64, only when the queue is created")
	f.Int32Var(&o.lanes, "lanes", 0, "lanes, one for each priority: 1 to 10, only when the queue is created")
	f.DurationVar(&o.retention, "retention", 0, "how old a message may become in the log: 1s to 10 years, 0 is no limit")
	f.Int64Var(&o.retentionBytes, "retention-bytes", 0, "stored bytes the log keeps, 0 is no limit; older messages go")
	f.BoolVar(&o.retentionSettled, "retention-settled", false, "drop what every group has settled")
	f.DurationVar(&o.expireAfter, "expire-after", 0, "how long an idle group is waited for by retention-settled: 1s to 10 years")
	f.Int64Var(&o.maxQueueBytes, "max-queue-bytes", 0, "stored bytes above which pushes are refused, 0 is no limit")
	f.Int64Var(&o.maxQueueMessages, "max-queue-messages", 0, "pending messages above which pushes are refused, 0 is no limit")
	f.StringVar(&o.compression, "compression", "", "how the log is compressed: zstd or none")
	f.BoolVar(&o.encryption, "encryption", false, "encrypt everything that is kept, only when the queue is created")
	f.BoolVar(&o.trace, "trace", false, "record what becomes of each message, for 24 h")
	f.DurationVar(&o.delay, "delay", 0, "how old a message must be before it is handed out: 0 to 15m")
	f.StringSliceVar(&o.reset, "reset", nil, "options that take their default again, for example max_attempts,backoff")
	return cmd
}

// options holds what was named on the command line.
func (o queueFlags) options(named func(string) bool) *queuev1.QueueOptions {
	out := &queuev1.QueueOptions{}
	for _, f := range []struct {
		flag  string
		value time.Duration
		set   **durationpb.Duration
	}{
		{"lease", o.lease, &out.Lease},
		{"backoff", o.backoff, &out.Backoff},
		{"backoff-max", o.backoffMax, &out.BackoffMax},
		{"idempotency-window", o.idempotencyWindow, &out.IdempotencyWindow},
		{"retention", o.retention, &out.Retention},
		{"expire-after", o.expireAfter, &out.ExpireAfter},
		{"delay", o.delay, &out.Delay},
	} {
		if named(f.flag) {
			*f.set = durationpb.New(f.value)
		}
	}
	for _, f := range []struct {
		flag  string
		value int32
		set   **int32
	}{
		{"max-attempts", o.maxAttempts, &out.MaxAttempts},
		{"max-message-bytes", o.maxMessageBytes, &out.MaxMessageBytes},
		{"max-groups", o.maxGroups, &out.MaxGroups},
		{"shards", o.shards, &out.Shards},
		{"lanes", o.lanes, &out.Lanes},
	} {
		if named(f.flag) {
			*f.set = &f.value
		}
	}
	for _, f := range []struct {
		flag  string
		value int64
		set   **int64
	}{
		{"retention-bytes", o.retentionBytes, &out.RetentionBytes},
		{"max-queue-bytes", o.maxQueueBytes, &out.MaxQueueBytes},
		{"max-queue-messages", o.maxQueueMessages, &out.MaxQueueMessages},
	} {
		if named(f.flag) {
			*f.set = &f.value
		}
	}
	if named("retention-settled") {
		out.RetentionSettled = &o.retentionSettled
	}
	if named("encryption") {
		out.Encryption = &o.encryption
	}
	if named("trace") {
		out.Trace = &o.trace
	}
	return out
}

// compress reads the flag that is one of a few words.
func (o queueFlags) compress(out *queuev1.QueueOptions) error {
	switch o.compression {
	case "":
	case "zstd":
		out.Compression = queuev1.Compression_COMPRESSION_ZSTD.Enum()
	case "none":
		out.Compression = queuev1.Compression_COMPRESSION_NONE.Enum()
	default:
		return fmt.Errorf("%w: --compression is zstd or none, not %q", ErrUsage, o.compression)
	}
	return nil
}

func newQueueRemove(g *globals) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use: "rm QUEUE", Short: "Delete a queue with its log and groups; dead letters stay", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				if err := c.DeleteQueue(ctx, args[0], force); err != nil {
					return err
				}
				if g.output == "json" {
					return g.printJSON(map[string]string{"deleted": args[0]})
				}
				_, err := fmt.Fprintln(g.Out, "deleted", args[0])
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "although messages are leased")
	return cmd
}
