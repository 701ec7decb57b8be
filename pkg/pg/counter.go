package pg

import (
	"context"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Counter records statements, so that a test can say how many a code path may cost. Put it into Options.Tracers. It is safe for concurrent use.
type Counter struct {
	mu         sync.Mutex // guards statements
	statements []string
}

var (
	_ pgx.QueryTracer = (*Counter)(nil)
	_ pgx.BatchTracer = (*Counter)(nil)
)

// TraceQueryStart implements pgx.QueryTracer. BEGIN and COMMIT count too: they are round trips.
func (c *Counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	c.add(data.SQL)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (*Counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements pgx.BatchTracer.
func (*Counter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

// TraceBatchQuery implements pgx.BatchTracer.
func (c *Counter) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	c.add(data.SQL)
}

// TraceBatchEnd implements pgx.BatchTracer.
func (*Counter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

func (c *Counter) add(sql string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.statements = append(c.statements, sql)
}

// Take returns the statements since the last Take, in the order they were sent.
func (c *Counter) Take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.statements
	c.statements = nil
	return taken
}
