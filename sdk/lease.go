package postrider

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// PopOptions of a pop; the zero value asks for one message of group "default" without waiting.
type PopOptions struct {
	Group string
	// Batch is the most messages, 1 to 1,000.
	Batch int
	// MaxBytes of the answer, default 4 MiB; one message comes whatever its size.
	MaxBytes int
	// Wait for the first message, up to 60 s.
	Wait time.Duration
	// Partition limits the pop to one partition.
	Partition string
	// Partitions is the most partitions to take from; default is Batch.
	Partitions int
	// Lease is how long the messages are held; default is the queue's.
	Lease time.Duration
	// Mode, OnFailure and Start are used when this pop creates the group.
	Mode      queuev1.GroupMode
	OnFailure queuev1.OnFailure
	Start     string
	// Consumer names this consumer, for inspection.
	Consumer string
	// InMaintenance, if set, is called when nothing is handed out because pops are in maintenance, with the reason that was given.
	InMaintenance func(reason string)
}

func (o PopOptions) request(queue string) *queuev1.PopRequest {
	req := &queuev1.PopRequest{
		Queue: queue, Group: o.Group, Batch: int32(o.Batch), MaxBytes: int32(o.MaxBytes), Partition: o.Partition,
		Partitions: int32(o.Partitions), Consumer: o.Consumer,
	}
	if o.Wait != 0 {
		req.Wait = durationpb.New(o.Wait)
	}
	if o.Lease != 0 {
		req.Lease = durationpb.New(o.Lease)
	}
	if o.Mode != 0 || o.OnFailure != 0 || o.Start != "" {
		req.GroupOptions = &queuev1.GroupOptions{Mode: o.Mode, OnFailure: o.OnFailure, Start: o.Start}
	}
	return req
}

// Delivery is one message as handed out.
type Delivery struct {
	Queue, Group string
	MessageID    string
	Partition    string
	Offset       int64
	Payload      []byte
	ContentType  string
	Headers      map[string]string
	ClientID     string
	// Attempt is 1 the first time the group gets the message.
	Attempt   int
	CreatedAt time.Time
	Priority  int32
}

// Lease is the right to settle the messages of one pop.
type Lease struct {
	Queue, Group string
	// Token names the lease to the server.
	Token      string
	Deliveries []*Delivery
	// Trimmed is what retention took from the group before it was settled, since a pop was last told.
	Trimmed []*queuev1.Trimmed

	client *Client

	mu      sync.Mutex // guards trusted
	trusted time.Time  // on this process's clock, which starts before the server's: never later than the true end
}

// Held is the lease that a token names, which came from a pop elsewhere. It knows none of its deliveries, and trusts itself once it is renewed.
func (c *Client) Held(queue, token string) *Lease {
	return &Lease{Queue: queue, Token: token, client: c}
}

// Pop leases messages, waiting up to opts.Wait for the first. It returns nil without an error when nothing was ready.
func (c *Client) Pop(ctx context.Context, queue string, opts PopOptions) (*Lease, error) {
	return c.popWith(ctx, opts.request(queue), func(r *queuev1.PopResponse) {
		if closed := r.GetPopMaintenance(); closed != nil && opts.InMaintenance != nil {
			opts.InMaintenance(closed.GetReason())
		}
	})
}

// popWith repeats a pop on another node while nodes are away or draining: what an unanswered pop leased comes back when its lease ends. seen gets each
// answer.
func (c *Client) popWith(ctx context.Context, req *queuev1.PopRequest, seen func(*queuev1.PopResponse)) (*Lease, error) {
	end := time.Now().Add(req.GetWait().AsDuration())
	for {
		lease, draining, err := c.popOnce(ctx, req, seen)
		left := time.Until(end)
		if !draining || left <= 0 || !sleep(ctx, rand.N(retryMin)+1) { //nolint:gosec // G404: jitter needs spread, not secrecy
			return lease, err
		}
		req.Wait = durationpb.New(left)
	}
}

func (c *Client) popOnce(ctx context.Context, req *queuev1.PopRequest, seen func(*queuev1.PopResponse)) (lease *Lease, draining bool, err error) {
	var sent time.Time
	resp, err := again(ctx, func() (*queuev1.PopResponse, error) {
		sent = time.Now()
		return c.queues.Pop(ctx, req)
	})
	if err != nil {
		return nil, false, fmt.Errorf("pop from %s: %w", req.GetQueue(), err)
	}
	seen(resp)
	if len(resp.GetSettled()) > 0 {
		req.Settle = nil // it is settled, and need not be asked for again
	}
	if resp.GetLease() == "" {
		return nil, resp.GetDraining(), nil
	}
	l := &Lease{Queue: req.GetQueue(), Group: req.GetGroup(), Token: resp.GetLease(), Trimmed: resp.GetTrimmed(), client: c}
	l.trust(sent.Add(resp.GetLeaseDuration().AsDuration()))
	for _, d := range resp.GetDeliveries() {
		l.Deliveries = append(l.Deliveries, &Delivery{
			Queue: l.Queue, Group: l.Group, MessageID: d.GetMessageId(), Partition: d.GetPartition(), Offset: d.GetOffset(), Payload: d.GetPayload(),
			ContentType: d.GetContentType(), Headers: d.GetHeaders(), ClientID: d.GetClientId(), Attempt: int(d.GetAttempt()),
			CreatedAt: d.GetCreatedAt().AsTime(), Priority: d.GetPriority(),
		})
	}
	return l, false, nil
}

// trust moves the deadline; it never moves back.
func (l *Lease) trust(until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if until.After(l.trusted) {
		l.trusted = until
	}
}

// TrustedUntil is the instant, on this process's clock, until which nobody else can have the messages.
func (l *Lease) TrustedUntil() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trusted
}

// AckResult is the fate of one settlement.
type AckResult struct {
	MessageID string
	Status    queuev1.AckStatus
	// Err is set when the settlement was refused, for example with code STALE_EPOCH.
	Err error
}

// Ack settles messages as done. Without deliveries it acks all of the lease.
func (l *Lease) Ack(ctx context.Context, done ...*Delivery) ([]AckResult, error) {
	if len(done) > 0 {
		return l.settle(ctx, l.acks(done))
	}
	// All at once is cheap. A repetition names each message, since only by name can one that the lost try settled be told from one that was lost.
	req := &queuev1.AckRequest{Queue: l.Queue, Lease: l.Token, AckRest: true}
	resp, err := again(ctx, func() (*queuev1.AckResponse, error) {
		this := req
		req = l.acks(l.Deliveries)
		return l.client.queues.Ack(ctx, this)
	})
	if err != nil {
		return nil, fmt.Errorf("settle in %s: %w", l.Queue, err)
	}
	return ackResults(resp.GetResults()), nil
}

func (l *Lease) acks(done []*Delivery) *queuev1.AckRequest {
	req := &queuev1.AckRequest{Queue: l.Queue, Lease: l.Token}
	for _, d := range done {
		req.Settlements = append(req.Settlements, &queuev1.Settlement{MessageId: d.MessageID, Action: queuev1.AckAction_ACK_ACTION_ACK})
	}
	return req
}

// Nack gives a message back as failed, to come again after the delay, or after the queue's backoff when the delay is negative.
func (l *Lease) Nack(ctx context.Context, d *Delivery, delay time.Duration, reason string) ([]AckResult, error) {
	return l.settle(ctx, &queuev1.AckRequest{Queue: l.Queue, Lease: l.Token, Settlements: []*queuev1.Settlement{nack(d, delay, reason)}})
}

// Reject sends a message to the dead letters.
func (l *Lease) Reject(ctx context.Context, d *Delivery, reason string) ([]AckResult, error) {
	return l.settle(ctx, &queuev1.AckRequest{Queue: l.Queue, Lease: l.Token, Settlements: []*queuev1.Settlement{reject(d, reason)}})
}

func nack(d *Delivery, delay time.Duration, reason string) *queuev1.Settlement {
	s := &queuev1.Settlement{MessageId: d.MessageID, Action: queuev1.AckAction_ACK_ACTION_NACK, Reason: reason}
	if delay >= 0 {
		s.Delay = durationpb.New(delay)
	}
	return s
}

func reject(d *Delivery, reason string) *queuev1.Settlement {
	return &queuev1.Settlement{MessageId: d.MessageID, Action: queuev1.AckAction_ACK_ACTION_REJECT, Reason: reason}
}

func (l *Lease) settle(ctx context.Context, req *queuev1.AckRequest) ([]AckResult, error) {
	resp, err := l.client.Settle(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("settle in %s: %w", l.Queue, err)
	}
	return ackResults(resp.GetResults()), nil
}

func ackResults(results []*queuev1.AckResult) []AckResult {
	out := make([]AckResult, len(results))
	for i, r := range results {
		out[i] = AckResult{MessageID: r.GetMessageId(), Status: r.GetStatus(), Err: fromItem(r.GetError())}
	}
	return out
}

// Renew prolongs the lease to d from now, or by the queue's default when d is 0. It never shortens.
func (l *Lease) Renew(ctx context.Context, d time.Duration) error {
	req := &queuev1.RenewRequest{Queue: l.Queue, Lease: l.Token}
	if d > 0 {
		req.Duration = durationpb.New(d)
	}
	var sent time.Time
	resp, err := again(ctx, func() (*queuev1.RenewResponse, error) {
		sent = time.Now()
		return l.client.queues.Renew(ctx, req)
	})
	if err != nil {
		return fmt.Errorf("renew lease: %w", err)
	}
	l.trust(sent.Add(resp.GetLeaseDuration().AsDuration()))
	return nil
}

// Release gives messages back uncharged; without deliveries, all that is left of the lease.
func (l *Lease) Release(ctx context.Context, back ...*Delivery) error {
	req := &queuev1.ReleaseRequest{Queue: l.Queue, Lease: l.Token}
	for _, d := range back {
		req.MessageIds = append(req.MessageIds, d.MessageID)
	}
	if _, err := again(ctx, func() (*queuev1.ReleaseResponse, error) { return l.client.queues.Release(ctx, req) }); err != nil {
		return fmt.Errorf("release lease: %w", err)
	}
	return nil
}

// Settle sends a settlement as it is, for what Lease has no method for: by client id, or without a lease.
func (c *Client) Settle(ctx context.Context, req *queuev1.AckRequest) (*queuev1.AckResponse, error) {
	return again(ctx, func() (*queuev1.AckResponse, error) { return c.queues.Ack(ctx, req) })
}
