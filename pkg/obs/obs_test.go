package obs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/obs"
	"postrider.dev/pkg/tenant"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLogLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := obs.NewLogger(&out, "info", "json")
	require.NoError(t, err)
	log.Debug("not this")
	log.Info("pushed", obs.Tenant("acme"), obs.Epoch(int64(3)), obs.Addr("a:1"), obs.Duration(1500*time.Millisecond), obs.Err(errors.New("boom")))

	var line map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &line))
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$`, line["time"])
	require.Contains(t, line["caller"], "obs_test.go")
	delete(line, "time")
	delete(line, "caller")
	require.Equal(t, map[string]any{
		"level": "info", "msg": "pushed", "tenant_id": "acme", "epoch": 3., "addr": "a:1", "duration": "1.5s", "err": "boom",
	}, line)

	out.Reset()
	log, err = obs.NewLogger(&out, "debug", "console")
	require.NoError(t, err)
	log.Debug("hello")
	require.Contains(t, out.String(), "DEBUG")
	_, err = obs.NewLogger(&out, "loud", "json")
	require.Error(t, err)
	_, err = obs.NewLogger(&out, "info", "xml")
	require.Error(t, err)
}

func TestFailuresAreAsLoudAsTheyDeserve(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := obs.NewLogger(&out, "debug", "json")
	require.NoError(t, err)
	ctx := tenant.NewContext(t.Context(), tenant.Caller{Tenant: "acme", Actor: "ci"})
	ctx = trace.ContextWithSpanContext(ctx, trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}}))

	obs.LogFailure(ctx, log, apierr.Internal(errors.New("disk full")))
	require.Contains(t, out.String(), `"level":"error"`)
	for _, part := range []string{`"error_id":"`, `disk full`, `"tenant_id":"acme"`, `"actor":"ci"`, `"trace_id":"01000`, `"reason":"INTERNAL"`} {
		require.Contains(t, out.String(), part)
	}
	out.Reset()
	obs.LogFailure(ctx, log, apierr.Unavailable("NO_DATABASE", "x", 0))
	require.Contains(t, out.String(), `"level":"warn"`)
	out.Reset()
	obs.LogFailure(ctx, log, apierr.NotFound("QUEUE_NOT_FOUND", "x"))
	require.Contains(t, out.String(), `"level":"debug"`)
}

func TestSampledCalmsWarningsAndKeepsErrors(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := obs.NewLogger(&out, "info", "json")
	require.NoError(t, err)
	log = obs.Sampled(log).With(zap.String("service", "x"))
	for range 1000 {
		log.Warn("no database")
		log.Error("bug")
		log.Debug("below the level")
	}
	require.Equal(t, 1000, strings.Count(out.String(), `"bug"`), "each error may be asked for by its id")
	require.Less(t, strings.Count(out.String(), `"no database"`), 200)
	require.NotContains(t, out.String(), "below")
	require.Equal(t, strings.Count(out.String(), "\n"), strings.Count(out.String(), `"service":"x"`))
}

func TestRegisterSharesEqualCollectors(t *testing.T) {
	t.Parallel()
	reg := obs.NewRegistry()
	counter := func(help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "x_total", Help: help}, labels)
	}
	first, err := obs.Register(reg, counter("x", "a"))
	require.NoError(t, err)
	second, err := obs.Register(reg, counter("x", "a"))
	require.NoError(t, err)
	require.Same(t, first, second)
	_, err = obs.Register(reg, counter("x", "b"))
	require.Error(t, err, "the same name with other labels is a mistake")

	families, err := reg.Gather()
	require.NoError(t, err)
	require.Greater(t, len(families), 20, "the runtime's and the process's metrics are there")
}

func TestWithoutAnEndpointTraceContextsStillPass(t *testing.T) {
	t.Parallel()
	tp, flush, err := obs.NewTraces(t.Context(), "", obs.Origin{})
	require.NoError(t, err)
	require.False(t, obs.Recording(tp))

	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	in := propagation.MapCarrier{"traceparent": parent, "tracestate": "a=b", "baggage": "k=v"}
	ctx := obs.Propagator().Extract(t.Context(), in)
	ctx, span := tp.Tracer("test").Start(ctx, "work")
	out := propagation.MapCarrier{}
	obs.Propagator().Inject(ctx, out)
	span.End()
	require.Equal(t, in, out)
	require.NoError(t, flush(t.Context()))
}

// collector is an OTLP receiver that remembers the names of spans.
type collector struct {
	coltrace.UnimplementedTraceServiceServer

	mu    sync.Mutex
	spans []string
	attrs string
}

func (c *collector) Export(_ context.Context, req *coltrace.ExportTraceServiceRequest) (*coltrace.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range req.GetResourceSpans() {
		c.attrs += rs.GetResource().String()
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				c.spans = append(c.spans, s.GetName())
			}
		}
	}
	return &coltrace.ExportTraceServiceResponse{}, nil
}

func TestSpansReachTheEndpoint(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c, srv := &collector{}, grpc.NewServer()
	coltrace.RegisterTraceServiceServer(srv, c)
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(l) })

	tp, flush, err := obs.NewTraces(t.Context(), "http://"+l.Addr().String(), obs.Origin{Service: "dispatcher", Version: "v1", Host: "h1", Zone: "z"})
	require.NoError(t, err)
	require.True(t, obs.Recording(tp))
	_, span := tp.Tracer("test").Start(t.Context(), "push")
	span.End()
	require.NoError(t, flush(t.Context()))
	srv.Stop()
	serving.Wait()

	require.Equal(t, []string{"push"}, c.spans)
	for _, value := range []string{"dispatcher", "v1", "h1"} {
		require.Contains(t, c.attrs, value)
	}
}

func TestABadEndpointIsAnErrorAndAnUnreachableOneIsNot(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"collector:4317", "ftp://collector", "http://", "http://a b", "::"} {
		_, _, err := obs.NewTraces(t.Context(), bad, obs.Origin{})
		require.Error(t, err, bad)
	}
	_, flush, err := obs.NewTraces(t.Context(), "http://127.0.0.1:1", obs.Origin{})
	require.NoError(t, err)
	require.NoError(t, flush(t.Context()))
}
