package server

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// streamInFlight bounds the requests of one stream that have no answer yet; a client that sends more waits.
const streamInFlight = 4_096

// PushStream implements the contract. Requests go to the engine in the order they came and share its commits; answers leave as they come, gathered while
// the previous frame is being sent.
func (s *Queues) PushStream(stream grpc.BidiStreamingServer[queuev1.PushStreamRequest, queuev1.PushStreamResponse]) error {
	by, err := caller(stream.Context())
	if err != nil {
		return err
	}
	p := &pushStream{by: by, engine: s.engine, stream: stream, room: make(chan struct{}, streamInFlight), wake: make(chan struct{}, 1), stop: make(chan struct{})}
	received := make(chan error, 1)
	go func() { received <- p.receive() }() // Recv returns once the handler has; until then it is awaited below
	return p.send(received, s.draining)
}

// pushStream is one stream's life.
type pushStream struct {
	by     tenant.Caller
	engine Engine
	stream grpc.BidiStreamingServer[queuev1.PushStreamRequest, queuev1.PushStreamResponse]
	room   chan struct{} // holds one token for each request in flight
	wake   chan struct{} // holds one token while answers wait
	stop   chan struct{} // closed when nothing more is accepted

	mu      sync.Mutex // guards answers
	answers []*queuev1.PushStreamResponse_Entry
}

// receive hands requests to the engine until the client is done (nil) or gone.
func (p *pushStream) receive() error {
	ctx := p.stream.Context()
	for {
		frame, err := p.stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, entry := range frame.GetEntries() {
			if p.stopped() {
				return nil
			}
			select {
			case p.room <- struct{}{}:
			case <-p.stop:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			id := entry.GetRequestId()
			if err := validatePush(entry.GetRequest()); err != nil {
				p.answer(id, nil, err)
				continue
			}
			p.engine.PushAsync(ctx, p.by.Tenant, entry.GetRequest(), func(resp *queuev1.PushResponse, err error) { p.answer(id, resp, err) })
		}
	}
}

func (p *pushStream) stopped() bool {
	select {
	case <-p.stop:
		return true
	default:
		return false
	}
}

// answer queues an answer. It never blocks.
func (p *pushStream) answer(id uint64, resp *queuev1.PushResponse, err error) {
	entry := &queuev1.PushStreamResponse_Entry{RequestId: id, Response: resp}
	if err != nil {
		entry.Error, entry.ErrorStatus = itemError(err)
	}
	p.mu.Lock()
	p.answers = append(p.answers, entry)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// send sends answers until the client is done and everything is answered, the client is gone, or the node drains: then what was accepted is
// still answered, and what was not has no answer.
func (p *pushStream) send(received <-chan error, draining <-chan struct{}) error {
	ctx := p.stream.Context()
	var end error
	ended := false
	for {
		if err := p.flush(); err != nil {
			return err
		}
		if ended && len(p.room) == 0 {
			return end
		}
		select {
		case <-p.wake:
		case err := <-received:
			ended, received = true, nil
			if err != nil {
				return err
			}
		case <-draining:
			ended, draining = true, nil
			close(p.stop)
			end = apierr.Unavailable(ReasonDraining, "the node is going away; ask another for what has no answer", 0)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// flush sends what waits, in one frame.
func (p *pushStream) flush() error {
	p.mu.Lock()
	answers := p.answers
	p.answers = nil
	p.mu.Unlock()
	if len(answers) == 0 {
		return nil
	}
	err := p.stream.Send(&queuev1.PushStreamResponse{Entries: answers})
	for range answers {
		<-p.room
	}
	return err
}
