package server

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"

	"postrider.dev/pkg/apierr"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// maxStreamPending bounds the requests of one stream that are not answered yet; beyond it the stream is not read.
const maxStreamPending = 4096

// PushStream takes requests in order and answers each when it is known. The client's end of sending is answered once everything is; a draining node
// takes nothing more and ends the stream when what it took is answered.
func (s *queueService) PushStream(wire grpc.BidiStreamingServer[queuev1.PushStreamRequest, queuev1.PushStreamResponse]) error {
	ctx, cancel := context.WithCancel(wire.Context())
	defer cancel()
	p := &pushStream{verbs: s.verbs, wake: make(chan struct{}, 1), room: make(chan struct{}, maxStreamPending)}
	received := make(chan error, 1)
	go func() { received <- p.receive(ctx, wire) }() // ends with the stream's context
	return p.send(ctx, wire, received)
}

type pushStream struct {
	verbs *verbs
	wake  chan struct{} // holds one token while answers wait
	room  chan struct{} // holds one token for each request that is not answered

	mu      sync.Mutex // guards the rest
	answers []*queuev1.PushStreamResponse_Entry
	open    int  // requests whose answer is not in answers yet
	closed  bool // nothing more is taken
	dropped bool // something came after that
}

// close makes submit take nothing more.
func (p *pushStream) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
}

// receive submits requests in the order they come; the exchange keeps that order for each queue.
func (p *pushStream) receive(ctx context.Context, wire grpc.BidiStreamingServer[queuev1.PushStreamRequest, queuev1.PushStreamResponse]) error {
	for {
		m, err := wire.Recv()
		if err != nil {
			return err
		}
		if v := p.verbs.rules.check(streamShape(m)); v != nil {
			return violation(v)
		}
		for _, e := range m.GetEntries() {
			select {
			case p.room <- struct{}{}:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			p.submit(ctx, e)
		}
	}
}

// streamShape is the frame without its requests, which are judged one by one: a bad one must not end the stream.
func streamShape(m *queuev1.PushStreamRequest) *queuev1.PushStreamRequest {
	shape := &queuev1.PushStreamRequest{Entries: make([]*queuev1.PushStreamRequest_Entry, len(m.GetEntries()))}
	for i := range shape.GetEntries() {
		shape.Entries[i] = placeholder
	}
	return shape
}

// placeholder passes every rule of an entry.
var placeholder = &queuev1.PushStreamRequest_Entry{ //nolint:gochecknoglobals // a constant
	Request: &queuev1.PushRequest{Queue: "q", Items: []*queuev1.PushItem{{}}},
}

func (p *pushStream) submit(ctx context.Context, e *queuev1.PushStreamRequest_Entry) {
	if !p.take() {
		return
	}
	id := e.GetRequestId()
	if e.GetRequest() == nil {
		p.answer(id, nil, apierr.InvalidArgument("MISSING_FIELD", "request", "request is needed"))
		return
	}
	push, err := p.verbs.preparePush(ctx, e.GetRequest(), nil, false)
	switch {
	case err != nil:
		p.answer(id, nil, err)
	case push.op == nil:
		resp, err := push.merge(nil)
		p.answer(id, resp, err)
	default:
		p.verbs.exchange.Go(push.op, func(res *dispatcherv1.Result, err error) {
			resp, err := push.answer(res, err)
			p.answer(id, resp, err)
		})
	}
}

// take counts one more request as open, unless nothing is taken any more.
func (p *pushStream) take() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.dropped = true
		return false
	}
	p.open++
	return true
}

func (p *pushStream) answer(id uint64, resp *queuev1.PushResponse, err error) {
	entry := &queuev1.PushStreamResponse_Entry{RequestId: id, Response: resp}
	if err != nil {
		e := apierr.From(err)
		entry.Response = nil
		entry.Error = &queuev1.ItemError{Code: e.Reason, Message: e.Message, Field: e.Field}
		entry.ErrorStatus = int32(e.Code)
	}
	p.mu.Lock()
	p.answers = append(p.answers, entry)
	p.open--
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// send writes what is answered, all that has gathered in one frame, until the client has ended and everything is answered.
func (p *pushStream) send(ctx context.Context, wire grpc.BidiStreamingServer[queuev1.PushStreamRequest, queuev1.PushStreamResponse], received <-chan error) error {
	draining := p.verbs.draining
	var ended error
	for {
		answers, open := p.gathered()
		if len(answers) > 0 {
			if err := wire.Send(&queuev1.PushStreamResponse{Entries: answers}); err != nil {
				return err
			}
			for range answers { // only now: a client that does not read its answers is not read either
				<-p.room
			}
			continue
		}
		if ended != nil && open == 0 {
			return p.end(ended)
		}
		select {
		case <-p.wake:
		case ended = <-received:
			received = nil
		case <-draining:
			draining = nil
			if ended == nil {
				ended = errDraining
				p.close()
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (p *pushStream) gathered() ([]*queuev1.PushStreamResponse_Entry, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	answers := p.answers
	p.answers = nil
	return answers, p.open
}

// end is how the stream ends. A client that has ended is told OK only if all that it sent was taken: the loss of what came after close must be seen.
func (p *pushStream) end(why error) error {
	p.mu.Lock()
	dropped := p.dropped
	p.mu.Unlock()
	switch {
	case errors.Is(why, errDraining), dropped && errors.Is(why, io.EOF):
		return apierr.Unavailable(reasonDraining, "the node drains: what was not answered was not taken; open a stream elsewhere", 0)
	case errors.Is(why, io.EOF):
		return nil
	}
	return why
}
