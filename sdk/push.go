package postrider

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Message is what a producer pushes.
type Message struct {
	// Partition whose order the message keeps; empty means "default".
	Partition string
	Payload   []byte
	// ContentType of the payload; empty means application/octet-stream.
	ContentType string
	Headers     map[string]string
	// ClientID is the producer's own name for the message.
	ClientID string
	// IdempotencyKey makes a repeated push of the same message a duplicate, and so safe to repeat.
	IdempotencyKey string
	// DeliverAt is when the message is appended to the log, by the database's clock and never earlier; the zero time, or one in the past, is now. At most
	// 366 days ahead. Not beside Delay.
	DeliverAt time.Time
	// Delay is the same, counted from the moment the message is accepted.
	Delay time.Duration
	// Priority is the lane that the message goes to, of a queue that has several: the highest is served first. A priority for which the queue has no lane is
	// refused with LANE_UNKNOWN.
	Priority int32
}

// PushResult is the fate of one message.
type PushResult struct {
	// MessageID is where the message is; of a delayed message a pending id, by which LookupID finds it now and once it came.
	MessageID string
	// Offset in the shard's log; -1 of a delayed message, which has none yet.
	Offset int64
	// AvailableAt is when a delayed message is due; zero: it is in the log.
	AvailableAt time.Time
	// Buffered says that the message is durable on one host's disk and has no place in the log yet: MessageID is a pending id, and Offset is 0.
	Buffered bool
	// Duplicate says that the idempotency key was seen before; MessageID is the first one's.
	Duplicate bool
	// Err is set when this message was refused; the others of the call were not harmed.
	Err error
}

// Push appends messages to a queue in one commit and returns when they are durable, one result a message. Concurrent calls share frames of one
// stream, not their fate. An error is returned when the whole call failed; refused messages have their own in the results. While the database is away or
// in maintenance the messages may be buffered instead.
func (c *Client) Push(ctx context.Context, queue string, messages ...Message) ([]PushResult, error) {
	return c.pushMessages(ctx, queue, queuev1.PushRequire_PUSH_REQUIRE_UNSPECIFIED, messages)
}

// PushCommitted is Push that takes no Buffered for an answer: while messages would be buffered it waits and asks again, until ctx ends.
func (c *Client) PushCommitted(ctx context.Context, queue string, messages ...Message) ([]PushResult, error) {
	return c.pushMessages(ctx, queue, queuev1.PushRequire_PUSH_REQUIRE_COMMITTED, messages)
}

func (c *Client) pushMessages(ctx context.Context, queue string, require queuev1.PushRequire, messages []Message) ([]PushResult, error) {
	req := &queuev1.PushRequest{Queue: queue, Require: require, Items: make([]*queuev1.PushItem, len(messages))}
	if c.listening.Load() > 0 {
		req.Origin = c.origin
	}
	keyed := len(messages) > 0
	for i, m := range messages {
		req.Items[i] = m.item()
		keyed = keyed && m.IdempotencyKey != ""
	}
	resp, err := c.pushRequest(ctx, req, keyed)
	if err != nil {
		return nil, fmt.Errorf("push to %s: %w", queue, err)
	}
	return pushResults(resp), nil
}

// item is the message as it is sent.
func (m *Message) item() *queuev1.PushItem {
	it := &queuev1.PushItem{
		Partition: m.Partition, Payload: m.Payload, ContentType: m.ContentType, Headers: m.Headers,
		ClientId: m.ClientID, IdempotencyKey: m.IdempotencyKey, Priority: m.Priority,
	}
	if !m.DeliverAt.IsZero() {
		it.DeliverAt = timestamppb.New(m.DeliverAt)
	}
	if m.Delay != 0 {
		it.Delay = durationpb.New(m.Delay)
	}
	return it
}

func pushResults(resp *queuev1.PushResponse) []PushResult {
	results := make([]PushResult, len(resp.GetResults()))
	for i, r := range resp.GetResults() {
		results[i] = PushResult{
			MessageID: r.GetMessageId(), Offset: r.GetOffset(),
			Duplicate: r.GetStatus() == queuev1.PushStatus_PUSH_STATUS_DUPLICATE,
			Buffered:  r.GetStatus() == queuev1.PushStatus_PUSH_STATUS_BUFFERED, Err: fromItem(r.GetError()),
		}
		if r.GetAvailableAt() != nil {
			results[i].Offset, results[i].AvailableAt = -1, r.GetAvailableAt().AsTime()
		}
	}
	return results
}

// pushRequest sends one request and repeats it while that is safe: nothing was sent yet, or every message has an idempotency key. A repetition says that
// it is one, for the queue may keep no keys; then the server refuses it.
func (c *Client) pushRequest(ctx context.Context, req *queuev1.PushRequest, keyed bool) (*queuev1.PushResponse, error) {
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		resp, err := c.pusher.push(ctx, req)
		switch {
		case err == nil:
			return resp, nil
		case Code(err) == "OUTCOME_UNKNOWN" && statusOf(err) == codes.FailedPrecondition:
			return nil, err
		case errors.Is(err, ErrOutcomeUnknown) && !keyed, errors.Is(err, ErrClosed), ctx.Err() != nil:
			return nil, err
		case !errors.Is(err, ErrOutcomeUnknown) && !isAway(err):
			return nil, err
		}
		if errors.Is(err, ErrOutcomeUnknown) && !req.GetResent() {
			req = &queuev1.PushRequest{ // the first one may still be read
				Queue: req.GetQueue(), Items: req.GetItems(), Origin: req.GetOrigin(), Require: req.GetRequire(), Resent: true,
			}
		}
		if !sleep(ctx, rand.N(pause)+1) { //nolint:gosec // G404: jitter needs spread, not secrecy
			return nil, err
		}
	}
}
