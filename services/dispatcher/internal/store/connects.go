package store

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// ConnectWatch tells somebody of new connections. It goes into the tracers of the pool's options, and learns later whom to tell.
type ConnectWatch struct{ tell atomic.Pointer[func()] }

var (
	_ pgx.QueryTracer   = (*ConnectWatch)(nil)
	_ pgx.ConnectTracer = (*ConnectWatch)(nil)
)

// Tell has fn called after each new connection from now on, before anything is sent on it.
func (c *ConnectWatch) Tell(fn func()) { c.tell.Store(&fn) }

// TraceConnectStart implements pgx.ConnectTracer.
func (*ConnectWatch) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	return ctx
}

// TraceConnectEnd implements pgx.ConnectTracer.
func (c *ConnectWatch) TraceConnectEnd(_ context.Context, data pgx.TraceConnectEndData) {
	if tell := c.tell.Load(); tell != nil && data.Err == nil {
		(*tell)()
	}
}

// TraceQueryStart implements pgx.QueryTracer; it does nothing.
func (*ConnectWatch) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer; it does nothing.
func (*ConnectWatch) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
