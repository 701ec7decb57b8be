package postrider

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// SubscribedMessage is a message as a subscriber gets it. Nothing is leased by it, and nothing is to be acked.
type SubscribedMessage struct {
	MessageID string
	Partition string
	// Offset in the log of Shard, which counts from 0.
	Offset      int64
	Shard       int
	Payload     []byte
	ContentType string
	Headers     map[string]string
	ClientID    string
	CreatedAt   time.Time
	Priority    int32
	// Resume is the token by which a later subscription goes on behind this message.
	Resume string
}

// Gap says that the messages of a shard from From to To-1 were trimmed before they could be read.
type Gap struct {
	Shard    int
	From, To int64
	// Resume is the token by which a later subscription goes on behind the gap.
	Resume string
}

// SubscribeOptions of a subscription. The zero value begins with what is committed from now on.
type SubscribeOptions struct {
	// From is where to begin: "latest" (default), "earliest", an RFC 3339 time, or the offset of the first message wanted in each shard, with commas
	// between. Resume, the token of an event of an earlier subscription, goes on behind that event instead.
	From, Resume string
	// Partitions are the only ones wanted; none means all.
	Partitions []string
	// Headers that a message must have, with exactly these values.
	Headers map[string]string
	// Echo lets what this Client pushes come back to it while it subscribes; else it does not.
	Echo bool
	// OnReady is told each time the subscription stands, with the token of where it does. nil ignores it.
	OnReady func(resume string)
	// OnGap is told of messages that are not there any more. nil ignores them.
	OnGap func(Gap)
	// OnError is told what Subscribe gets over by itself: a node that is lost or goes away, a close for being slow. nil ignores it.
	OnError func(error)
}

// Subscribe hands every message of a queue to h, in the order of each shard, until ctx ends, and returns nil then. When a node is lost, drains, or calls
// this subscriber slow, it goes on behind the last message that h was given, at another node if need be: nothing is lost, and nothing comes twice. An error
// of h ends it with that error. So does a refusal that will not change, and the end of the queue.
func (c *Client) Subscribe(ctx context.Context, queue string, h func(ctx context.Context, m *SubscribedMessage) error, opts SubscribeOptions) error {
	s := &subscription{client: c, handle: h, opts: opts, req: &queuev1.SubscribeRequest{
		Queue: queue, From: opts.From, Resume: opts.Resume, Partitions: opts.Partitions, Headers: opts.Headers,
	}}
	if !opts.Echo {
		s.req.SkipOrigin = c.origin
		c.listening.Add(1)
		defer c.listening.Add(-1)
	}
	for pause := retryMin; ; pause = min(2*pause, retryMax) {
		s.stood = false
		err := s.once(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case s.failed != nil:
			return s.failed
		case isFinal(err), statusOf(err) == codes.OutOfRange:
			return fmt.Errorf("subscribe to %s: %w", queue, err)
		}
		if opts.OnError != nil {
			opts.OnError(err)
		}
		if s.stood {
			pause = retryMin
		}
		if !sleep(ctx, rand.N(pause)+1) { //nolint:gosec // G404: jitter needs spread, not secrecy
			return nil
		}
	}
}

// errStreamEnded says that a node ended a subscription without a word.
var errStreamEnded = errors.New("the subscription ended without being closed")

// subscription is one call of Subscribe.
type subscription struct {
	client *Client
	handle func(context.Context, *SubscribedMessage) error
	opts   SubscribeOptions
	req    *queuev1.SubscribeRequest // from where to go on next
	stood  bool                      // an event came since it was last opened
	failed error                     // of the handler
}

// once reads one stream until it ends, and says why it did.
func (s *subscription) once(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.client.queues.Subscribe(ctx, s.req)
	if err != nil {
		return fromStatus(err)
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return errStreamEnded
		case err != nil:
			return fromStatus(err)
		}
		for _, e := range m.GetEvents() {
			if err := s.take(ctx, e); err != nil {
				return err
			}
		}
	}
}

// take deals with one event. Once it has, the next stream goes on behind it.
func (s *subscription) take(ctx context.Context, e *queuev1.SubscribeEvent) error {
	if !s.stood {
		s.stood = true
		if s.opts.OnReady != nil {
			s.opts.OnReady(e.GetResume())
		}
	}
	switch k := e.GetKind().(type) {
	case *queuev1.SubscribeEvent_Message:
		if s.failed = s.handle(ctx, subscribed(e.GetResume(), k.Message)); s.failed != nil {
			return s.failed
		}
	case *queuev1.SubscribeEvent_Gap:
		if s.opts.OnGap != nil {
			s.opts.OnGap(Gap{Shard: int(k.Gap.GetShard()), From: k.Gap.GetFrom(), To: k.Gap.GetTo(), Resume: e.GetResume()})
		}
	case *queuev1.SubscribeEvent_Closed:
		s.req.From, s.req.Resume = "", e.GetResume()
		return closedError(k.Closed)
	}
	s.req.From, s.req.Resume = "", e.GetResume()
	return nil
}

func subscribed(resume string, m *queuev1.SubscribedMessage) *SubscribedMessage {
	return &SubscribedMessage{
		MessageID: m.GetMessageId(), Partition: m.GetPartition(), Offset: m.GetOffset(), Shard: int(m.GetShard()), Payload: m.GetPayload(),
		ContentType: m.GetContentType(), Headers: m.GetHeaders(), ClientID: m.GetClientId(), CreatedAt: m.GetCreatedAt().AsTime(), Resume: resume,
		Priority: m.GetPriority(),
	}
}

// closedError is what a closed event means: go on elsewhere, or not at all.
func closedError(c *queuev1.SubscribeClosed) error {
	e := &Error{Code: strings.TrimPrefix(c.GetReason().String(), "CLOSED_REASON_"), Status: codes.FailedPrecondition, Message: c.GetDetail()}
	switch c.GetReason() {
	case queuev1.ClosedReason_CLOSED_REASON_DRAINING:
		e.Status = codes.Unavailable
	case queuev1.ClosedReason_CLOSED_REASON_SLOW:
		e.Status = codes.ResourceExhausted
	default:
	}
	return e
}
