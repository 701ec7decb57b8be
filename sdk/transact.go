package postrider

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Transaction is a list of operations on any number of queues, which Client.Transact does in one commit: all of it or nothing. The zero value is an empty one.
// A transaction has at most 100 operations and 1,000 messages and settlements.
type Transaction struct {
	ops []*queuev1.TransactOperation
	key string
}

// Key names the transaction, so that it is done once however often it is asked for: also by another process that was given the same work, within an hour.
// Without, Transact makes one, which covers its own repetitions.
func (t *Transaction) Key(key string) *Transaction {
	t.key = key
	return t
}

// Push appends messages to a queue.
func (t *Transaction) Push(queue string, messages ...Message) *Transaction {
	req := &queuev1.PushRequest{Queue: queue}
	for i := range messages {
		req.Items = append(req.Items, messages[i].item())
	}
	t.ops = append(t.ops, &queuev1.TransactOperation{Push: req})
	return t
}

// Ack settles messages of a lease as done; without deliveries all that were handed out under it. Settlements of one lease that follow one another are one
// operation.
func (t *Transaction) Ack(l *Lease, done ...*Delivery) *Transaction {
	if len(done) == 0 {
		done = l.Deliveries
	}
	return t.settle(l, l.acks(done).GetSettlements()...)
}

// Nack gives a message back as failed, as Lease.Nack does.
func (t *Transaction) Nack(l *Lease, d *Delivery, delay time.Duration, reason string) *Transaction {
	return t.settle(l, nack(d, delay, reason))
}

// Settle adds a settlement as it is: an operation of its own, in this place, whatever lies before it.
func (t *Transaction) Settle(req *queuev1.AckRequest) *Transaction {
	t.ops = append(t.ops, &queuev1.TransactOperation{Ack: req})
	return t
}

// Reject sends a message to the dead letters.
func (t *Transaction) Reject(l *Lease, d *Delivery, reason string) *Transaction {
	return t.settle(l, reject(d, reason))
}

func (t *Transaction) settle(l *Lease, s ...*queuev1.Settlement) *Transaction {
	if n := len(t.ops); n > 0 && t.ops[n-1].GetAck().GetLease() == l.Token && t.ops[n-1].GetAck().GetQueue() == l.Queue {
		t.ops[n-1].Ack.Settlements = append(t.ops[n-1].Ack.Settlements, s...)
		return t
	}
	t.ops = append(t.ops, &queuev1.TransactOperation{Ack: &queuev1.AckRequest{Queue: l.Queue, Lease: l.Token, Settlements: s}})
	return t
}

// Operation is the outcome of one operation of a transaction that was done.
type Operation struct {
	Pushed  []PushResult // of a push: each is queued or a duplicate
	Settled []AckResult  // of a settlement: none is refused
}

// TransactionError says that nothing of a transaction was done because operations of it were refused. It unwraps to the *Error of the whole, whose code is
// that of the first operation that trying again would not help.
type TransactionError struct {
	// Operations has an error for each operation at fault, and nil for the others.
	Operations []error

	err error
}

func (e *TransactionError) Error() string { return e.err.Error() }

// Unwrap returns the *Error of the whole.
func (e *TransactionError) Unwrap() error { return e.err }

// Transact does all operations in one commit and returns their outcomes, or does nothing. It asks again, on other nodes too, while the outcome is not known
// or nothing can be committed, until ctx ends: by the key the transaction is done once. A refusal is a *TransactionError.
func (c *Client) Transact(ctx context.Context, t *Transaction) ([]Operation, error) {
	req := &queuev1.TransactRequest{Operations: t.ops}
	if t.key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", t.key)
	} else {
		ctx = once(ctx)
	}
	if c.listening.Load() > 0 {
		for _, op := range req.GetOperations() {
			if op.GetPush() != nil {
				op.Push.Origin = c.origin
			}
		}
	}
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		resp, err := c.queues.Transact(ctx, req)
		if err == nil {
			return operationsOf(resp), nil
		}
		wire := fromStatus(err)
		if refused := refusedOperations(err); refused != nil {
			return nil, fmt.Errorf("transact: %w", &TransactionError{Operations: refused, err: wire})
		}
		unsure := Code(wire) == "OUTCOME_UNKNOWN" || Code(wire) == "IDEMPOTENCY_KEY_IN_USE"
		if !isAway(wire) && !unsure || !sleep(ctx, rand.N(pause)+1) { //nolint:gosec // G404: jitter needs spread, not secrecy
			return nil, fmt.Errorf("transact: %w", unknownIf(unsure, wire))
		}
	}
}

// unknownIf marks an error as one of something that may have happened.
func unknownIf(unsure bool, err error) error {
	if e, ok := errors.AsType[*Error](err); ok && unsure {
		e.OutcomeUnknown = true
	}
	return err
}

func operationsOf(resp *queuev1.TransactResponse) []Operation {
	out := make([]Operation, len(resp.GetResults()))
	for i, r := range resp.GetResults() {
		if r.GetPush() != nil {
			out[i].Pushed = pushResults(r.GetPush())
		}
		if r.GetAck() != nil {
			out[i].Settled = ackResults(r.GetAck().GetResults())
		}
	}
	return out
}

// refusedOperations returns the errors of operations that a gRPC error carries, nil if it carries none.
func refusedOperations(err error) []error {
	for _, d := range status.Convert(err).Details() {
		if resp, ok := d.(*queuev1.TransactResponse); ok {
			out := make([]error, len(resp.GetResults()))
			for i, r := range resp.GetResults() {
				out[i] = fromItem(r.GetError())
			}
			return out
		}
	}
	return nil
}
