package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/config"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/obs"
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

// NewEnv returns the Env of a process with real time and TCP, whose log goes to w. Spans go to the OTLP endpoint unless it is empty. The function
// flushes what is buffered; its context bounds the wait.
func NewEnv(ctx context.Context, w io.Writer, service string, cfg config.Common, otlpEndpoint string) (Env, func(context.Context) error, error) {
	log, err := obs.NewLogger(w, cfg.LogLevel, cfg.LogFormat)
	if err != nil {
		return Env{}, nil, err
	}
	build := BuildInfo()
	traces, flush, err := obs.NewTraces(ctx, otlpEndpoint, obs.Origin{
		Service: service, Version: build.Version, Host: cfg.Host(), Zone: cfg.Zone,
	})
	if err != nil {
		return Env{}, nil, err
	}
	reg := obs.NewRegistry()
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: obs.Namespace, Name: "build_info", Help: "Always 1; the labels say which program this is.",
	}, []string{"service", "version", "commit", "go"})
	reg.MustRegister(info)
	info.WithLabelValues(service, build.Version, build.Commit, build.Go).Set(1)

	env := Env{
		Log:     log.With(zap.String(obs.KeyService, service), zap.String(obs.KeyHost, cfg.Host())),
		Metrics: reg,
		Traces:  traces,
		Clock:   clock.Real{},
		Listen:  memnet.ListenTCP,
		Dial:    memnet.DialTCP,
	}
	return env, func(ctx context.Context) error {
		if err := flush(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("flush traces: %w", err)
		}
		return nil
	}, nil
}
