package httpserver_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/httpserver"
	"postrider.dev/pkg/run"
	"postrider.dev/pkg/run/runtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client talks HTTP over the network of env, also in memory.
func client(t *testing.T, env run.Env) *http.Client {
	t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		return env.Dial(ctx, strings.Replace(strings.TrimSuffix(addr, ":80"), "mem.", "mem:", 1))
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// listen returns a server for tests; Run is up to the caller.
func listen(t *testing.T, env run.Env, opts httpserver.Options) *httpserver.Server {
	t.Helper()
	opts.Service, opts.Listener = "test", "public"
	if opts.Addr == "" {
		opts.Addr = "mem:test"
	}
	if opts.DrainTimeout == 0 {
		opts.DrainTimeout = time.Minute
	}
	s, err := httpserver.New(t.Context(), env, opts)
	require.NoError(t, err)
	return s
}

type answer struct {
	status  int
	header  http.Header
	body    string
	problem apierr.Problem
}

func do(t *testing.T, c *http.Client, method, url string, body io.Reader, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := c.Do(req)
	require.NoError(t, err)
	b, err := io.ReadAll(res.Body)
	require.NoError(t, errors.Join(err, res.Body.Close()))
	a := answer{status: res.StatusCode, header: res.Header, body: string(b)}
	if res.Header.Get("Content-Type") == apierr.ContentType && len(b) > 0 {
		require.NoError(t, json.Unmarshal(b, &a.problem))
	}
	return a
}

func TestUnknownRoutesAndMethodsAreProblems(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	s := listen(t, env, httpserver.Options{})
	s.Router().Post("/v1/queues/{queue}/push", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	runtest.Go(t, s.Run)
	c := client(t, env)

	require.Equal(t, http.StatusCreated, do(t, c, http.MethodPost, "http://mem.test/v1/queues/a/push", http.NoBody).status)
	require.Equal(t, "ROUTE_NOT_FOUND", do(t, c, http.MethodGet, "http://mem.test/nowhere", http.NoBody).problem.Code)
	a := do(t, c, http.MethodGet, "http://mem.test/v1/queues/a/push", http.NoBody)
	require.Equal(t, http.StatusMethodNotAllowed, a.status)
	require.Equal(t, "METHOD_NOT_ALLOWED", a.problem.Code)
	require.Equal(t, http.MethodPost, a.header.Get("Allow"))
	do(t, c, "BREW", "http://mem.test/v1/queues/b/push", http.NoBody)

	require.NoError(t, testutil.GatherAndCompare(env.Metrics, strings.NewReader(`
# HELP postrider_test_http_in_flight HTTP requests that have begun and not ended.
# TYPE postrider_test_http_in_flight gauge
postrider_test_http_in_flight{listener="public"} 0
`), "postrider_test_http_in_flight"))
	families, err := env.Metrics.Gather()
	require.NoError(t, err)
	var series []string
	for _, f := range families {
		if f.GetName() == "postrider_test_http_seconds" {
			for _, m := range f.GetMetric() {
				var labels []string
				for _, l := range m.GetLabel() {
					labels = append(labels, l.GetValue())
				}
				series = append(series, strings.Join(labels, " "))
			}
		}
	}
	require.ElementsMatch(t, []string{
		"public POST /v1/queues/{queue}/push 201", "public GET none 404", "public GET none 405", "public other none 405",
	}, series, "patterns, never paths; no method of a client's invention")
}

func TestFailuresAreLoggedOnceWithTheirCause(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	core, logs := observer.New(zapcore.WarnLevel)
	env.Log = zap.New(core)
	s := listen(t, env, httpserver.Options{})
	s.Router().Get("/fail", func(w http.ResponseWriter, r *http.Request) { apierr.WriteHTTP(w, r, errors.New("password=hunter2")) })
	s.Router().Get("/panic", func(http.ResponseWriter, *http.Request) { panic("password=hunter2") })
	s.Router().Post("/late", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("half"))
		panic("too late for an answer")
	})
	s.Router().Post("/abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	runtest.Go(t, s.Run)
	c := client(t, env)

	for _, path := range []string{"/fail", "/panic"} {
		a := do(t, c, http.MethodGet, "http://mem.test"+path, http.NoBody)
		require.Equal(t, http.StatusInternalServerError, a.status)
		require.NotContains(t, a.body, "hunter2")
		lines := logs.TakeAll()
		require.Len(t, lines, 1)
		fields := lines[0].ContextMap()
		require.Contains(t, fields["err"], "hunter2")
		require.Equal(t, a.problem.Meta[apierr.MetaErrorID], fields["error_id"])
		require.Equal(t, path, fields["route"])
	}
	for _, path := range []string{"/late", "/abort"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://mem.test"+path, http.NoBody) // a GET would be tried again
		require.NoError(t, err)
		res, err := c.Do(req)
		if err == nil {
			_, err = io.ReadAll(res.Body)
			_ = res.Body.Close()
		}
		require.Error(t, err, "a client must see that the answer is not whole")
	}
	require.Equal(t, 1, logs.Len(), "ErrAbortHandler is a way to say nothing")
}

func TestBodiesAreLimited(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	s := listen(t, env, httpserver.Options{MaxBodyBytes: 2000})
	s.Router().Post("/read/{limit}", func(w http.ResponseWriter, r *http.Request) {
		limit := int64(1000)
		if strings.HasSuffix(r.URL.Path, "big") {
			limit = 1 << 30
		}
		b, err := httpserver.ReadBody(w, r, limit)
		if err != nil {
			apierr.WriteHTTP(w, r, err)
			return
		}
		_, _ = w.Write(b)
	})
	runtest.Go(t, s.Run)
	c := client(t, env)
	const small, big = "http://mem.test/read/small", "http://mem.test/read/big"

	for _, size := range []int{0, 1, 511, 512, 513, 1000} {
		body := strings.Repeat("x", size)
		require.Equal(t, body, do(t, c, http.MethodPost, small, strings.NewReader(body)).body)
		require.Equal(t, body, do(t, c, http.MethodPost, small, chunked(body)).body)
	}
	for url, size := range map[string]int{small: 1001, big: 2001} {
		for _, body := range []io.Reader{bytes.NewReader(make([]byte, size)), chunked(strings.Repeat("x", size))} {
			a := do(t, c, http.MethodPost, url, body)
			require.Equal(t, http.StatusRequestEntityTooLarge, a.status)
			require.Equal(t, "PAYLOAD_TOO_LARGE", a.problem.Code)
			require.NotEmpty(t, a.problem.Meta["max_bytes"])
		}
	}
}

// chunked hides the length of a body.
func chunked(body string) io.Reader { return io.MultiReader(strings.NewReader(body)) }

func TestATruncatedBodyIsA400(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	s := listen(t, env, httpserver.Options{})
	errs := make(chan error, 1)
	s.Router().Post("/", func(w http.ResponseWriter, r *http.Request) {
		_, err := httpserver.ReadBody(w, r, 1<<20)
		errs <- err
	})
	runtest.Go(t, s.Run)
	conn, err := env.Dial(t.Context(), "mem:test")
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.Equal(t, httpserver.ReasonBodyTruncated, apierr.Reason(<-errs))
}

func TestABodyThatTricklesIsRefusedAndItsConnectionEnds(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	s := listen(t, env, httpserver.Options{})
	s.Router().Post("/", func(w http.ResponseWriter, r *http.Request) {
		_, err := httpserver.ReadBodyWithin(w, r, 1<<20, 50*time.Millisecond)
		apierr.WriteHTTP(w, r, err)
	})
	runtest.Go(t, s.Run)
	conn, err := env.Dial(t.Context(), "mem:test")
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\na") // and never the rest
	require.NoError(t, err)

	got, err := io.ReadAll(conn) // returns when the server ends the connection; the client never does

	require.NoError(t, err)
	require.Contains(t, string(got), httpserver.ReasonBodyTimeout)
	require.Contains(t, string(got), "Connection: close")
	require.NoError(t, conn.Close())
}

func TestHeadersAreLimited(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	s := listen(t, env, httpserver.Options{})
	runtest.Go(t, s.Run)
	a := do(t, client(t, env), http.MethodGet, "http://mem.test/", http.NoBody, "X-Big", strings.Repeat("x", 64<<10))
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, a.status)
}

func TestTracesArriveWithAndWithoutRecording(t *testing.T) {
	t.Parallel()
	for _, recording := range []bool{false, true} {
		env := runtest.New(t)
		spans := tracetest.NewSpanRecorder()
		if recording {
			env.Traces = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
		}
		s := listen(t, env, httpserver.Options{})
		got := make(chan trace.SpanContext, 1)
		s.Router().Get("/v1/{x}", func(_ http.ResponseWriter, r *http.Request) { got <- trace.SpanContextFromContext(r.Context()) })
		stop := runtest.Go(t, s.Run)
		do(t, client(t, env), http.MethodGet, "http://mem.test/v1/a", http.NoBody, "traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		require.NoError(t, stop())
		require.Equal(t, "0af7651916cd43dd8448eb211c80319c", (<-got).TraceID().String())
		if recording {
			require.Equal(t, "GET /v1/{x}", spans.Ended()[0].Name())
		}
	}
}

func TestStreamsCanFlush(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	s := listen(t, env, httpserver.Options{})
	s.Router().Get("/events", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, ": hello\n\n")
		_ = http.NewResponseController(w).Flush()
		<-s.Draining()
		_, _ = io.WriteString(w, "event: going-away\n\n")
	})
	stop := runtest.Go(t, s.Run)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://mem.test/events", http.NoBody)
	require.NoError(t, err)
	res, err := client(t, env).Do(req)
	require.NoError(t, err)
	first := make([]byte, len(": hello\n\n"))
	_, err = io.ReadFull(res.Body, first)
	require.NoError(t, err, "the first event arrives while the stream is open")
	require.NoError(t, stop())
	rest, err := io.ReadAll(res.Body)
	require.NoError(t, errors.Join(err, res.Body.Close()))
	require.Equal(t, "event: going-away\n\n", string(rest))
}

func TestIncompleteOptionsAreRefused(t *testing.T) {
	t.Parallel()
	env := runtest.New(t)
	for _, opts := range []httpserver.Options{{}, {Service: "x", Listener: "y"}, {Service: "x", Addr: "mem:x"}, {Listener: "y", Addr: "mem:x"}} {
		_, err := httpserver.New(t.Context(), env, opts)
		require.Error(t, err)
	}
}
