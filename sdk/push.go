package postrider

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"google.golang.org/grpc/codes"

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
}

// PushResult is the fate of one message.
type PushResult struct {
	MessageID string
	Offset    int64
	// Duplicate says that the idempotency key was seen before; MessageID is the first one's.
	Duplicate bool
	// Err is set when this message was refused; the others of the call were not harmed.
	Err error
}

// Push appends messages to a queue in one commit and returns when they are durable, one result a message. Concurrent calls share frames of one
// stream, not their fate. An error is returned when the whole call failed; refused messages have their own in the results.
func (c *Client) Push(ctx context.Context, queue string, messages ...Message) ([]PushResult, error) {
	req := &queuev1.PushRequest{Queue: queue, Items: make([]*queuev1.PushItem, len(messages))}
	keyed := len(messages) > 0
	for i, m := range messages {
		req.Items[i] = &queuev1.PushItem{
			Partition: m.Partition, Payload: m.Payload, ContentType: m.ContentType, Headers: m.Headers,
			ClientId: m.ClientID, IdempotencyKey: m.IdempotencyKey,
		}
		keyed = keyed && m.IdempotencyKey != ""
	}
	resp, err := c.pushRequest(ctx, req, keyed)
	if err != nil {
		return nil, fmt.Errorf("push to %s: %w", queue, err)
	}
	results := make([]PushResult, len(resp.GetResults()))
	for i, r := range resp.GetResults() {
		results[i] = PushResult{
			MessageID: r.GetMessageId(), Offset: r.GetOffset(),
			Duplicate: r.GetStatus() == queuev1.PushStatus_PUSH_STATUS_DUPLICATE, Err: fromItem(r.GetError()),
		}
	}
	return results, nil
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
			req = &queuev1.PushRequest{Queue: req.GetQueue(), Items: req.GetItems(), Resent: true} // the first one may still be read
		}
		if !sleep(ctx, rand.N(pause)+1) { //nolint:gosec // G404: jitter needs spread, not secrecy
			return nil, err
		}
	}
}
