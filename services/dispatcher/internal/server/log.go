package server

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	"postrider.dev/services/dispatcher/internal/domain/invalid"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/engine"
)

// tailBytes is about how much one frame of a tail holds.
const tailBytes = 512 << 10

// LocateLog implements the contract.
func (x *Exchange) LocateLog(ctx context.Context, req *dispatcherv1.LocateLogRequest) (*dispatcherv1.LocateLogResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := queue.CheckName("queue", req.GetQueue()); err != nil {
		return nil, wireError(err)
	}
	start := queue.Start{Kind: queue.Latest}
	if req.GetFrom() != "" {
		if start, err = queue.ParseStart(req.GetFrom()); err != nil {
			return nil, wireError(err)
		}
	}
	id, bounds, err := x.logs.LocateLog(ctx, by.Tenant, req.GetQueue(), start, req.GetCreate())
	if err != nil {
		return nil, wireError(err)
	}
	resp := &dispatcherv1.LocateLogResponse{QueueId: id}
	for _, b := range bounds {
		resp.Shards = append(resp.Shards, &dispatcherv1.LogBounds{Tail: int64(b.Tail), Head: int64(b.Head), Start: int64(b.Start)})
	}
	return resp, nil
}

// ReadLog implements the contract.
func (x *Exchange) ReadLog(ctx context.Context, req *dispatcherv1.ReadLogRequest) (*dispatcherv1.ReadLogResponse, error) {
	by, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if err := firstOf(queue.CheckName("queue", req.GetQueue()), checkOffset(req.GetFrom())); err != nil {
		return nil, wireError(err)
	}
	page, err := x.logs.ReadLog(ctx, by.Tenant, req.GetQueue(), req.GetQueueId(), int(req.GetShard()), message.Offset(req.GetFrom()))
	if err != nil {
		return nil, wireError(err)
	}
	return &dispatcherv1.ReadLogResponse{Page: page}, nil
}

func checkOffset(at int64) error {
	if at < 0 {
		return invalid.New(invalid.OutOfRange, "from", "is %d, an offset is not negative", at)
	}
	return nil
}

// TailLog implements the contract. Whatever ends it, the caller opens another, here or elsewhere, from where it has got to.
func (x *Exchange) TailLog(stream grpc.BidiStreamingServer[dispatcherv1.TailLogRequest, dispatcherv1.TailLogResponse]) error {
	ctx := stream.Context()
	by, err := caller(ctx)
	if err != nil {
		return err
	}
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	offsets := make([]message.Offset, len(first.GetOffsets()))
	for i, at := range first.GetOffsets() {
		if err := checkOffset(at); err != nil {
			return wireError(err)
		}
		offsets[i] = message.Offset(at)
	}
	f, err := x.logs.Follow(ctx, by.Tenant, first.GetQueue(), first.GetQueueId(), offsets)
	if err != nil {
		return wireError(err)
	}
	defer f.Close()
	f.Serve(first.GetSubscribers())
	t := &tailing{tail: f, at: offsets, stream: stream, draining: x.draining, received: make(chan error, 1)}
	go func() { t.received <- t.receive() }() // Recv returns once the handler has, or the client is gone
	return wireError(t.run(ctx))
}

// tailing is the life of one tail.
type tailing struct {
	tail     *engine.Tail
	at       []message.Offset // what was sent, by shard
	stream   grpc.BidiStreamingServer[dispatcherv1.TailLogRequest, dispatcherv1.TailLogResponse]
	draining <-chan struct{}
	received chan error
}

// receive takes what the caller says of its subscribers.
func (t *tailing) receive() error {
	for {
		m, err := t.stream.Recv()
		if err != nil {
			return err
		}
		t.tail.Serve(m.GetSubscribers())
	}
}

func (t *tailing) run(ctx context.Context) error {
	for {
		changed := t.tail.Changed()
		if err := t.tail.Check(ctx); err != nil {
			return err
		}
		more, err := t.send(ctx)
		if err != nil {
			return err
		}
		if more {
			changed = ready
		}
		select {
		case <-changed:
		case <-t.draining:
			return engine.ErrDraining
		case err := <-t.received:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// ready is always.
var ready = func() chan struct{} { //nolint:gochecknoglobals // a constant
	c := make(chan struct{})
	close(c)
	return c
}()

// send sends a frame of what there is, a page of each shard in turn, and reports whether there may be more.
func (t *tailing) send(ctx context.Context) (more bool, err error) {
	frame := &dispatcherv1.TailLogResponse{}
	for bytes, found := 0, true; found && bytes < tailBytes; {
		found = false
		for i := range t.at {
			if t.at[i] >= t.tail.Head(i) {
				continue
			}
			page, err := t.tail.Page(ctx, i, t.at[i])
			if err != nil {
				return false, err
			}
			frame.Pages = append(frame.Pages, page)
			t.at[i] = message.Offset(page.GetNext())
			for _, m := range page.GetMessages() {
				bytes += 128 + len(m.GetPayload())
			}
			found = true
		}
		more = found
	}
	if len(frame.GetPages()) == 0 {
		return false, nil
	}
	return more, t.stream.Send(frame)
}
