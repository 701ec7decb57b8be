// Package run starts, joins and ends the parts of a process.
//
// main is one line, os.Exit(run.Main("dispatcher", dispatcher.Defaults(), dispatcher.Run)): Main reads the configuration, lends an Env, turns
// the first SIGTERM or SIGINT into the end of the context and the second into an immediate exit, and returns the exit code. Inside a service, All and
// Layers own its goroutines: the first one to end ends the others, all are waited for, and a panic becomes an error.
//
// Only the caller of Main may end the process.
package run

import (
	"context"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
)

// Env is what the process lends to a service. A service takes nothing else from its surroundings, so several of them live in one process.
type Env struct {
	Log     *zap.Logger
	Metrics *prometheus.Registry
	Traces  trace.TracerProvider
	Clock   clock.Clock
	// Listen opens a listener on addr: TCP, or in memory for "mem:NAME", which only a process that holds several services lends.
	Listen func(ctx context.Context, addr string) (net.Listener, error)
	// Dial connects to addr in the same address space; it serves as grpc.WithContextDialer.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
}
