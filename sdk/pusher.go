package postrider

import (
	"context"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Bounds of one frame of the push stream.
const (
	maxFrameEntries = 256
	maxFrameBytes   = 4 << 20
	frameOverhead   = 64 // at most, of a frame with one entry
)

// pusher sends the pushes of all callers over one stream. While one frame is being written the next callers gather, so frames grow with the load.
type pusher struct {
	client queuev1.QueueServiceClient
	queue  chan *pushCall
	done   chan struct{} // closed when run has ended

	mu      sync.Mutex // guards the rest
	nextID  uint64
	pending map[uint64]*pushCall
}

type pushCall struct {
	ctx    context.Context //nolint:containedctx // so that the sender can pass over calls that were given up
	req    *queuev1.PushRequest
	size   int
	answer chan pushAnswer // room for one: answering never blocks
}

type pushAnswer struct {
	resp *queuev1.PushResponse
	err  error
}

func newPusher(client queuev1.QueueServiceClient) *pusher {
	return &pusher{client: client, queue: make(chan *pushCall, 1024), done: make(chan struct{}), pending: make(map[uint64]*pushCall)}
}

// push sends a request and waits for its answer. An error that matches ErrOutcomeUnknown means that it was sent and may have been done.
func (p *pusher) push(ctx context.Context, req *queuev1.PushRequest) (*queuev1.PushResponse, error) {
	call := &pushCall{ctx: ctx, req: req, size: proto.Size(req), answer: make(chan pushAnswer, 1)}
	if call.size > maxFrame-frameOverhead { // it would break the stream, and with it the calls of others
		return nil, fromStatus(tooLarge(call.size))
	}
	select {
	case p.queue <- call:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-p.done:
		return nil, ErrClosed
	}
	select {
	case a := <-call.answer:
		return a.resp, a.err
	case <-ctx.Done():
		return nil, &Error{Code: "CANCELLED", Status: codes.Canceled, Message: context.Cause(ctx).Error(), OutcomeUnknown: true}
	case <-p.done:
		return nil, &Error{Code: "CLOSED", Status: codes.Canceled, Message: ErrClosed.Error(), OutcomeUnknown: true}
	}
}

// run keeps a stream while there is something to push, until ctx ends.
func (p *pusher) run(ctx context.Context) {
	defer close(p.done)
	for {
		select {
		case first := <-p.queue:
			p.stream(ctx, first)
		case <-ctx.Done():
			return
		}
	}
}

// stream runs one stream, beginning with the call given. When the stream breaks, calls that were sent fail as unknown; a stream that cannot be opened
// fails its first call as not sent, and the callers that wait behind it try the next stream.
func (p *pusher) stream(ctx context.Context, first *pushCall) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.client.PushStream(ctx)
	if err != nil {
		first.answer <- pushAnswer{err: fromStatus(err)}
		return
	}
	broken := make(chan error, 1)
	go func() { broken <- p.receive(stream) }() // ends with the stream; awaited below
	err = p.send(ctx, stream, first, broken)
	cancel()
	if err == nil {
		err = <-broken
	}
	p.failPending(err)
}

// send writes frames until the stream breaks. It returns nil when the receiver still has to be waited for.
func (p *pusher) send(ctx context.Context, stream grpc.BidiStreamingClient[queuev1.PushStreamRequest, queuev1.PushStreamResponse], first *pushCall,
	broken <-chan error,
) error {
	next := first
	for {
		frame, rest := p.gather(next)
		if len(frame.GetEntries()) > 0 {
			if err := stream.Send(frame); err != nil {
				if rest != nil {
					rest.answer <- pushAnswer{err: &Error{Code: "STREAM_BROKEN", Status: codes.Unavailable, Message: "the node ended the stream"}}
				}
				return nil // the receiver knows why
			}
		}
		if next = rest; next != nil {
			continue
		}
		select {
		case next = <-p.queue:
		case err := <-broken:
			return fmt.Errorf("push stream: %w", err)
		case <-ctx.Done():
			return nil
		}
	}
}

// gather makes a frame of the call given and of those that wait, and returns the call that did not fit any more. A call alone may be as large as the
// server takes.
func (p *pusher) gather(call *pushCall) (frame *queuev1.PushStreamRequest, rest *pushCall) {
	frame = &queuev1.PushStreamRequest{}
	bytes := 0
	for call != nil {
		if call.ctx.Err() == nil {
			if len(frame.GetEntries()) > 0 && bytes+call.size > maxFrameBytes {
				return frame, call
			}
			bytes += call.size
			frame.Entries = append(frame.Entries, &queuev1.PushStreamRequest_Entry{RequestId: p.register(call), Request: call.req})
		}
		if len(frame.GetEntries()) >= maxFrameEntries {
			return frame, nil
		}
		select {
		case call = <-p.queue:
		default:
			return frame, nil
		}
	}
	return frame, nil
}

func (p *pusher) register(call *pushCall) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nextID++
	p.pending[p.nextID] = call
	return p.nextID
}

// receive hands answers to their callers until the stream ends.
func (p *pusher) receive(stream grpc.BidiStreamingClient[queuev1.PushStreamRequest, queuev1.PushStreamResponse]) error {
	for {
		resp, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, e := range resp.GetEntries() {
			p.mu.Lock()
			call := p.pending[e.GetRequestId()]
			delete(p.pending, e.GetRequestId())
			p.mu.Unlock()
			if call != nil {
				call.answer <- answer(e)
			}
		}
	}
}

func answer(e *queuev1.PushStreamResponse_Entry) pushAnswer {
	if e.GetError() == nil {
		return pushAnswer{resp: e.GetResponse()}
	}
	code := codes.Code(e.GetErrorStatus())
	return pushAnswer{err: &Error{
		Code: e.GetError().GetCode(), Status: code, Message: e.GetError().GetMessage(), Field: e.GetError().GetField(),
		OutcomeUnknown: e.GetError().GetCode() == "OUTCOME_UNKNOWN",
	}}
}

// failPending answers every call without an answer: it was sent, so its outcome is unknown, unless the server refused the stream itself.
func (p *pusher) failPending(cause error) {
	if cause == nil || cause == io.EOF { //nolint:errorlint // Recv returns io.EOF itself
		cause = &Error{Code: "STREAM_ENDED", Status: codes.Unavailable, Message: "the node ended the stream"}
	}
	err := fromStatus(cause)
	e, ok := err.(*Error) //nolint:errorlint // just made
	if !ok {
		e = &Error{Code: "STREAM_BROKEN", Status: codes.Unavailable, Message: err.Error()}
	}
	e.OutcomeUnknown = e.Status != codes.Unauthenticated && e.Status != codes.PermissionDenied && e.Code != "DRAINING"
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, call := range p.pending {
		call.answer <- pushAnswer{err: e}
		delete(p.pending, id)
	}
}
