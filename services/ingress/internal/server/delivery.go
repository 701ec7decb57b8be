package server

import (
	"context"
	"sync"

	"google.golang.org/grpc/stats"
)

// deliveryWatch learns whether gRPC could write an answer, which a handler cannot: it has returned by then.
type deliveryWatch struct{}

type watchKey struct{}

// watched is what to do if the answer of one call does not get out.
type watched struct {
	mu   sync.Mutex // guards undo
	undo func()
}

// trackDelivery makes undo be called if the answer of the call of ctx cannot be written.
func trackDelivery(ctx context.Context, undo func()) {
	if w, ok := ctx.Value(watchKey{}).(*watched); ok {
		w.mu.Lock()
		w.undo = undo
		w.mu.Unlock()
	}
}

func (deliveryWatch) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, watchKey{}, &watched{})
}

func (deliveryWatch) HandleRPC(ctx context.Context, s stats.RPCStats) {
	end, ok := s.(*stats.End)
	if !ok || end.Error == nil {
		return
	}
	w, ok := ctx.Value(watchKey{}).(*watched)
	if !ok {
		return
	}
	w.mu.Lock()
	undo := w.undo
	w.undo = nil
	w.mu.Unlock()
	if undo != nil {
		undo()
	}
}

func (deliveryWatch) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

func (deliveryWatch) HandleConn(context.Context, stats.ConnStats) {}
