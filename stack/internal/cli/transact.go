package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
)

// maxTransaction is what a file of operations may have: payloads of 32 MiB, as base64, and what is around them.
const maxTransaction = 48 << 20

// transactFile is a file of operations, as the body of POST /v1/transactions has them.
type transactFile struct {
	Operations []struct {
		Push *struct {
			Queue string         `json:"queue"`
			Items []transactItem `json:"items"`
		} `json:"push"`
		Ack *struct {
			Queue       string               `json:"queue"`
			Group       string               `json:"group"`
			Lease       string               `json:"lease"`
			Settlements []transactSettlement `json:"settlements"`
		} `json:"ack"`
	} `json:"operations"`
}

type transactItem struct {
	Partition      string            `json:"partition"`
	Payload        json.RawMessage   `json:"payload"`
	PayloadBase64  []byte            `json:"payload_base64"`
	ContentType    string            `json:"content_type"`
	Headers        map[string]string `json:"headers"`
	ClientID       string            `json:"client_id"`
	IdempotencyKey string            `json:"idempotency_key"`
	DeliverAt      time.Time         `json:"deliver_at"`
	Delay          textDuration      `json:"delay"`
	Priority       int32             `json:"priority"`
}

type transactSettlement struct {
	MessageID string        `json:"message_id"`
	ClientID  string        `json:"client_id"`
	Partition string        `json:"partition"`
	Action    string        `json:"action"`
	Delay     *textDuration `json:"delay"`
	Reason    string        `json:"reason"`
}

// textDuration is a duration written like 1.5s.
type textDuration time.Duration

// UnmarshalJSON implements json.Unmarshaler.
func (d *textDuration) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	v, err := time.ParseDuration(text)
	*d = textDuration(v)
	return err
}

func newTransact(g *globals) *cobra.Command {
	var file, key string
	cmd := &cobra.Command{
		Use:   "transact",
		Short: "Push and settle on several queues in one commit: all of it or nothing",
		Long: `Reads operations, as the body of POST /v1/transactions has them, and does them in one commit. If one is refused nothing is done, and it is named.
With an idempotency key a repeat within an hour answers what the first one answered.`,
		Example: `  postrider transact -f ops.json
  postrider pop orders -o json | make-operations | postrider transact -f - --idempotency-key order-7

  {"operations": [
    {"ack":  {"queue": "orders", "lease": "LEASE", "settlements": [{"message_id": "ID"}]}},
    {"push": {"queue": "invoices", "items": [{"partition": "customer-1", "payload": {"order": 7}}]}}]}`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t, err := g.readTransaction(file)
			if err != nil {
				return err
			}
			return g.with(cmd.Context(), 0, func(ctx context.Context, c *postrider.Client) error {
				done, err := c.Transact(ctx, t.Key(key))
				if err != nil {
					return g.printRefused(err)
				}
				return g.printOperations(done)
			})
		},
	}
	cmd.Flags().StringVarP(&file, "file", "f", "-", "file of operations; - is standard input")
	cmd.Flags().StringVar(&key, "idempotency-key", "", "makes a repeat get the first answer")
	return cmd
}

func (g *globals) readTransaction(file string) (*postrider.Transaction, error) {
	in := g.In
	if file != "-" {
		f, err := os.Open(file) //nolint:gosec // G304: the user says which
		if err != nil {
			return nil, fmt.Errorf("read operations: %w", err)
		}
		defer f.Close() //nolint:errcheck // nothing was written
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxTransaction+1))
	if err != nil {
		return nil, fmt.Errorf("read operations: %w", err)
	}
	if len(text) > maxTransaction {
		return nil, fmt.Errorf("%w: the operations are larger than %d MiB", ErrUsage, maxTransaction>>20)
	}
	var ops transactFile
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&ops); err != nil {
		return nil, fmt.Errorf("%w: the operations cannot be read: %w", ErrUsage, err)
	}
	return transactionOf(&ops)
}

func transactionOf(ops *transactFile) (*postrider.Transaction, error) {
	t := &postrider.Transaction{}
	for i, op := range ops.Operations {
		if (op.Push == nil) == (op.Ack == nil) {
			return nil, fmt.Errorf("%w: operation %d is neither a push nor an ack, or both", ErrUsage, i)
		}
		if op.Push != nil {
			var items []postrider.Message
			for _, it := range op.Push.Items {
				items = append(items, it.message())
			}
			t.Push(op.Push.Queue, items...)
			continue
		}
		req := &queuev1.AckRequest{Queue: op.Ack.Queue, Group: op.Ack.Group, Lease: op.Ack.Lease}
		for _, s := range op.Ack.Settlements {
			one, err := s.settlement()
			if err != nil {
				return nil, fmt.Errorf("%w: operation %d: %w", ErrUsage, i, err)
			}
			req.Settlements = append(req.Settlements, one)
		}
		t.Settle(req)
	}
	return t, nil
}

func (it *transactItem) message() postrider.Message {
	m := postrider.Message{
		Partition: it.Partition, Payload: it.Payload, ContentType: it.ContentType, Headers: it.Headers, ClientID: it.ClientID,
		IdempotencyKey: it.IdempotencyKey, DeliverAt: it.DeliverAt, Delay: time.Duration(it.Delay), Priority: it.Priority,
	}
	if it.Payload == nil {
		m.Payload = it.PayloadBase64
	} else if m.ContentType == "" {
		m.ContentType = "application/json"
	}
	return m
}

func (s *transactSettlement) settlement() (*queuev1.Settlement, error) {
	actions := map[string]queuev1.AckAction{
		"": queuev1.AckAction_ACK_ACTION_ACK, "ack": queuev1.AckAction_ACK_ACTION_ACK,
		"nack": queuev1.AckAction_ACK_ACTION_NACK, "reject": queuev1.AckAction_ACK_ACTION_REJECT,
	}
	action, ok := actions[s.Action]
	if !ok {
		return nil, fmt.Errorf("action %q is none of ack, nack and reject", s.Action) //nolint:err113 // for the user alone
	}
	one := &queuev1.Settlement{MessageId: s.MessageID, ClientId: s.ClientID, Partition: s.Partition, Action: action, Reason: s.Reason}
	if s.Delay != nil {
		one.Delay = durationpb.New(time.Duration(*s.Delay))
	}
	return one, nil
}

// printRefused says of a refused transaction what is wrong with each operation.
func (g *globals) printRefused(err error) error {
	refused, ok := errors.AsType[*postrider.TransactionError](err)
	if !ok {
		return err
	}
	for i, fault := range refused.Operations {
		if fault != nil {
			if _, werr := fmt.Fprintf(g.Err, "operation %d: %v\n", i, fault); werr != nil {
				return werr
			}
		}
	}
	return err
}

func (g *globals) printOperations(done []postrider.Operation) error {
	if g.output == "json" {
		list := make([]any, len(done))
		for i, op := range done {
			list[i] = map[string]any{"pushed": op.Pushed, "settled": op.Settled}
		}
		return g.printJSON(map[string]any{"operations": list})
	}
	rows := [][]any{}
	for i, op := range done {
		for _, r := range op.Pushed {
			what := "queued"
			if r.Duplicate {
				what = "duplicate"
			}
			rows = append(rows, []any{i, what, r.MessageID})
		}
		for _, r := range op.Settled {
			rows = append(rows, []any{i, ackWord(r.Status), r.MessageID})
		}
	}
	return g.printTable("nothing was to be done", []string{"Operation", "Outcome", "Message"}, rows)
}
