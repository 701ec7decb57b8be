package grpcclient_test

import (
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/run"
)

// newEnv returns a quiet Env outside of a test.
func newEnv(network *memnet.Network) run.Env {
	return run.Env{
		Log: zap.NewNop(), Metrics: prometheus.NewRegistry(), Traces: noop.NewTracerProvider(), Clock: clock.Real{},
		Listen: network.Listen, Dial: network.Dial,
	}
}
