package server

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"

	"postrider.dev/services/ingress/internal/engine/answers"
)

// deliveryWatch learns whether gRPC could write an answer, which a handler cannot: it has returned by then.
type deliveryWatch struct{}

type watchKey struct{}

// watched is the answer of one call.
type watched struct {
	mu   sync.Mutex // guards the rest
	undo func()     // what to do if it does not get out
	hold *answers.Hold
}

// trackDelivery makes undo be called, once, if the answer of the call of ctx cannot be written, and hold be released when it has left.
func trackDelivery(ctx context.Context, hold *answers.Hold, undo func()) {
	w, ok := ctx.Value(watchKey{}).(*watched)
	if !ok { // not called over gRPC
		hold.Release()
		return
	}
	w.mu.Lock()
	w.undo, w.hold = sync.OnceFunc(undo), hold
	w.mu.Unlock()
}

// pend is the interceptor behind all others: it hands answers that take room on as pending ones.
func (s *Server) pend(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	resp, err := handle(ctx, req)
	w, ok := ctx.Value(watchKey{}).(*watched)
	if err != nil || !ok {
		return resp, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hold.Counted() == 0 {
		return resp, nil
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return resp, nil
	}
	conn, ok := p.AuthInfo.(*clientConn)
	if !ok {
		return resp, nil
	}
	answer := &pending{message: resp, hold: w.hold, undo: w.undo, conn: conn, server: s, ended: make(chan struct{})}
	w.hold = nil // it is the pending answer's now
	return answer, nil
}

// TagRPC gives each call its place to say what is watched.
func (deliveryWatch) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return context.WithValue(ctx, watchKey{}, &watched{})
}

// HandleRPC undoes what could not be written. What is pending is watched further: gRPC has queued it, and it leaves as the client reads.
func (deliveryWatch) HandleRPC(ctx context.Context, s stats.RPCStats) {
	end, ok := s.(*stats.End)
	if !ok {
		return
	}
	w, ok := ctx.Value(watchKey{}).(*watched)
	if !ok {
		return
	}
	w.mu.Lock()
	undo, hold := w.undo, w.hold
	w.undo, w.hold = nil, nil
	w.mu.Unlock()
	hold.Release()
	if end.Error != nil && undo != nil {
		undo()
	}
}

// TagConn does nothing: a connection is its own place, see clientConn.
func (deliveryWatch) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn ends what is pending on a connection that has ended.
func (deliveryWatch) HandleConn(ctx context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnEnd); !ok {
		return
	}
	if p, ok := peer.FromContext(ctx); ok {
		if conn, ok := p.AuthInfo.(*clientConn); ok {
			conn.lost()
		}
	}
}
