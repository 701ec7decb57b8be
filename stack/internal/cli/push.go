package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	postrider "postrider.dev/sdk"
)

// Bounds of `push --lines`: a request holds this many messages or bytes, a line this many bytes.
const (
	linesPerPush = 500
	bytesPerPush = 8 << 20
	maxLine      = 17 << 20
)

func newPush(g *globals) *cobra.Command {
	var m postrider.Message
	var headers []string
	var at string
	var lines, committed bool
	cmd := &cobra.Command{
		Use:   "push QUEUE [PAYLOAD]",
		Short: "Append a message to a queue; without PAYLOAD or with - it is read from standard input",
		Example: `  postrider push orders '{"id": 7}' --partition customer-1
  postrider push events --lines < events.ndjson
  postrider push reminders '{"id": 7}' --delay 24h
  postrider push orders '{"id": 8}' --priority 2`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if m.Headers, err = parseHeaders(headers); err != nil {
				return err
			}
			if m.DeliverAt, err = parseAt(at); err != nil {
				return err
			}
			if lines && (len(args) > 1 || m.ClientID != "" || m.IdempotencyKey != "" || committed) {
				return fmt.Errorf("%w: --lines takes payloads from standard input, without --client-id, --idempotency-key and --require-committed", ErrUsage)
			}
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				if lines {
					return g.pushLines(cmd.Context(), c, args[0], m) //nolint:contextcheck // input may take longer than the timeout of a command
				}
				if m.Payload, err = g.payload(args[1:]); err != nil {
					return err
				}
				return g.pushOne(ctx, c, args[0], m, committed)
			})
		},
	}
	f := cmd.Flags()
	f.StringVarP(&m.Partition, "partition", "p", "", "partition whose order the message keeps (default \"default\")")
	f.StringVar(&m.ContentType, "content-type", "", "media type; default application/json if the payload is JSON, else application/octet-stream")
	f.StringVar(&m.ClientID, "client-id", "", "your own name for the message")
	f.StringVar(&m.IdempotencyKey, "idempotency-key", "", "makes a repeated push a duplicate")
	f.DurationVar(&m.Delay, "delay", 0, "deliver after this long, at most 8784h (366 days)")
	f.StringVar(&at, "at", "", "deliver at this RFC 3339 time, such as 2030-01-02T15:04:05Z; not beside --delay")
	cmd.MarkFlagsMutuallyExclusive("delay", "at")
	f.Int32Var(&m.Priority, "priority", 0, "lane of the queue, from 0; higher ones are served first")
	f.StringArrayVarP(&headers, "header", "H", nil, "name=value; may be repeated")
	f.BoolVar(&committed, "require-committed", false, "wait until the message has a place in the log, rather than have it buffered")
	f.BoolVar(&lines, "lines", false, "each line of standard input is a message")
	return cmd
}

func parseHeaders(list []string) (map[string]string, error) {
	headers := make(map[string]string, len(list))
	for _, h := range list {
		name, value, ok := strings.Cut(h, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%w: header %q is not name=value", ErrUsage, h)
		}
		headers[name] = value
	}
	return headers, nil
}

// parseAt reads an instant; none is the zero time.
func parseAt(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return at, fmt.Errorf("%w: --at %q is no RFC 3339 time such as 2030-01-02T15:04:05Z", ErrUsage, text)
	}
	return at, nil
}

// payload is the argument, or standard input.
func (g *globals) payload(args []string) ([]byte, error) {
	if len(args) == 1 && args[0] != "-" {
		return []byte(args[0]), nil
	}
	text, err := io.ReadAll(io.LimitReader(g.In, maxLine))
	if err != nil {
		return nil, fmt.Errorf("read payload: %w", err)
	}
	return text, nil
}

func (g *globals) pushOne(ctx context.Context, c *postrider.Client, queue string, m postrider.Message, committed bool) error {
	push := c.Push
	if committed {
		push = c.PushCommitted
	}
	results, err := push(ctx, queue, typed(m))
	if err != nil {
		return err
	}
	r := results[0]
	if r.Err != nil {
		return r.Err
	}
	what := "queued"
	if r.Duplicate {
		what = "duplicate of"
	}
	shown := map[string]any{"message_id": r.MessageID, "duplicate": r.Duplicate}
	switch {
	case r.Buffered:
		shown["buffered"] = true
	case r.AvailableAt.IsZero():
		shown["offset"] = r.Offset
	default:
		shown["available_at"] = r.AvailableAt
	}
	if g.output == "json" {
		return g.printJSON(shown)
	}
	if r.Buffered {
		_, err = fmt.Fprintf(g.Out, "buffered %s on the host's disk until the database takes it\n", r.MessageID)
		return err
	}
	if !r.AvailableAt.IsZero() {
		_, err = fmt.Fprintf(g.Out, "%s %s, due at %s\n", what, r.MessageID, r.AvailableAt.Format(time.RFC3339))
		return err
	}
	_, err = fmt.Fprintf(g.Out, "%s %s at offset %d\n", what, r.MessageID, r.Offset)
	return err
}

func typed(m postrider.Message) postrider.Message {
	if m.ContentType == "" && json.Valid(m.Payload) {
		m.ContentType = "application/json"
	}
	return m
}

// pushLines pushes standard input line by line. A line that is refused is told and the others go on; the command fails then.
func (g *globals) pushLines(ctx context.Context, c *postrider.Client, queue string, like postrider.Message) error {
	in := bufio.NewScanner(g.In)
	in.Buffer(make([]byte, 64<<10), maxLine)
	var batch []postrider.Message
	pushed, refused, line, size := 0, 0, 0, 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		results, err := c.Push(ctx, queue, batch...)
		if err != nil {
			return fmt.Errorf("after %d messages: %w", pushed, err)
		}
		for i, r := range results {
			if r.Err != nil {
				refused++
				_, _ = fmt.Fprintf(g.Err, "line %d: %v\n", line-len(batch)+i+1, r.Err)
				continue
			}
			pushed++
		}
		batch, size = batch[:0], 0
		return nil
	}
	for in.Scan() {
		m := like
		m.Payload = append([]byte(nil), in.Bytes()...)
		line++
		size += len(m.Payload)
		batch = append(batch, typed(m))
		if len(batch) == linesPerPush || size >= bytesPerPush {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	err := in.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		err = fmt.Errorf("line %d is longer than %s", line+1, bytesText(maxLine))
	}
	if err := errors.Join(flush(), err); err != nil {
		return err
	}
	if refused > 0 {
		return fmt.Errorf("%d of %d lines were refused", refused, line)
	}
	if g.output == "json" {
		return g.printJSON(map[string]int{"pushed": pushed})
	}
	_, err = fmt.Fprintf(g.Out, "queued %d messages\n", pushed)
	return err
}
