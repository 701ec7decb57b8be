package httpserver_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/httpserver"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/run"
)

// BenchmarkMiddleware is what every request pays before its handler and after it, without the network.
func BenchmarkMiddleware(b *testing.B) {
	env := run.Env{Log: zap.NewNop(), Metrics: prometheus.NewRegistry(), Traces: noop.NewTracerProvider(), Clock: clock.Real{}, Listen: memnet.New().Listen}
	s, err := httpserver.New(b.Context(), env, httpserver.Options{Service: "test", Listener: "public", Addr: "mem:x"})
	require.NoError(b, err)
	defer s.Close()
	s.Router().Post("/v1/queues/{queue}/push", func(http.ResponseWriter, *http.Request) {})
	r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/queues/a/push", http.NoBody)
	w := httptest.NewRecorder()
	b.ReportAllocs()
	for b.Loop() {
		s.Router().ServeHTTP(w, r)
	}
}
