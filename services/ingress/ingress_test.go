package ingress_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/config"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/run"
	"postrider.dev/services/ingress"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const adminKey = "prk_admin_0123456789ABCDEFGHIJKLMNOP"

func TestConfigReportsEveryProblemAtOnce(t *testing.T) {
	t.Parallel()
	cfg := ingress.Defaults()
	cfg.Auth = "off"
	cfg.HTTPAddr, cfg.GRPCAddr = "0.0.0.0:7400", "nonsense"
	cfg.AdminKey = "hunter2"
	cfg.KeyStale = time.Second
	cfg.DispatcherAddrs = []string{"here"}

	err := cfg.Validate()

	for _, name := range []string{"DATABASE_URL", "HTTP_ADDR", "GRPC_ADDR", "ADMIN_KEY", "KEY_STALE", "DISPATCHER_ADDRS", "ALLOW_INSECURE"} {
		require.ErrorContains(t, err, name)
	}
	require.NotContains(t, err.Error(), "hunter2")
}

func TestWithoutAuthenticationOnlyLoopbackIsServedUnlessTold(t *testing.T) {
	t.Parallel()
	cfg := ingress.Defaults()
	cfg.DatabaseURL = "postgres://x"
	require.NoError(t, cfg.Validate())
	cfg.Auth = "off"
	require.NoError(t, cfg.Validate())
	cfg.GRPCAddr = ":7401"
	require.Error(t, cfg.Validate())
	cfg.AllowInsecure = true
	require.NoError(t, cfg.Validate())
}

func TestHelpIsWhatTheGoldenSays(t *testing.T) {
	t.Parallel()
	var help bytes.Buffer
	require.NoError(t, config.Help(&help, "ingress", ingress.Defaults()))
	file := filepath.Join("testdata", "help-config.txt")
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(file, help.Bytes(), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(string(want), help.String()), "UPDATE=1 rewrites %s", file)
}

// process starts an ingress without any dispatcher; addresses are in memory.
func process(t *testing.T, change ...func(*ingress.Config)) (client *http.Client, stop context.CancelFunc, ended <-chan error) {
	t.Helper()
	audit := migrate.Set{Schema: "audit", FS: fstest.MapFS{"0001_stub.sql": {Data: []byte(`-- +goose Up
-- +goose StatementBegin
CREATE FUNCTION audit.enqueue(tenant text, actor text, action text, resource text, detail jsonb) RETURNS void LANGUAGE sql AS '';
-- +goose StatementEnd
`)}}}
	network := memnet.New()
	names, listeners := map[string]string{}, map[string]net.Listener{}
	listen := func(name string) string { // HTTP goes over TCP, on ports that are open before anything starts
		l, err := network.Listen(t.Context(), "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		names[name], listeners[l.Addr().String()] = l.Addr().String(), l
		return l.Addr().String()
	}
	cfg := ingress.Defaults()
	cfg.DatabaseURL = config.Secret(pgtest.NewDatabase(t, pgtest.Roles{}, audit).URL())
	cfg.HTTPAddr, cfg.GRPCAddr, cfg.AdminAddr, cfg.AdminKey = listen("http"), "mem:grpc", listen("admin"), adminKey
	cfg.FailoverWait = 10 * time.Millisecond
	for _, c := range change {
		c(&cfg)
	}
	require.NoError(t, cfg.Validate())
	env := run.Env{
		Log: zap.NewNop(), Metrics: prometheus.NewRegistry(), Traces: noop.NewTracerProvider(), Clock: clock.Real{}, Dial: network.Dial,
		Listen: func(ctx context.Context, addr string) (net.Listener, error) {
			if l := listeners[addr]; l != nil {
				return l, nil
			}
			return network.Listen(ctx, addr)
		},
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		done <- ingress.Run(ctx, cfg, env)
	}()
	client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
		host, _, _ := net.SplitHostPort(addr)
		return network.Dial(ctx, names[host])
	}}}
	t.Cleanup(func() {
		cancel()
		client.CloseIdleConnections()
		<-finished
	})
	return client, cancel, done
}

func status(t *testing.T, client *http.Client, url, key string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Host = "localhost" // the admin listener answers no foreign name
	if key != "" {
		req.Header.Set("X-Api-Key", key)
	}
	resp, err := client.Do(req)
	require.NoError(t, err)
	_ = resp.Body.Close()
	return resp.StatusCode
}

func page(t *testing.T, client *http.Client, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Host = "localhost"
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close() //nolint:errcheck // read to its end
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(text)
}

func TestAnIngressWithoutADispatcherLivesIsNotReadyAndSaysWhy(t *testing.T) {
	t.Parallel()
	client, stop, ended := process(t)

	require.Equal(t, http.StatusOK, status(t, client, "http://http/livez", ""))
	require.Equal(t, http.StatusServiceUnavailable, status(t, client, "http://http/readyz", ""))
	require.Equal(t, http.StatusServiceUnavailable, status(t, client, "http://admin/readyz", ""))
	require.Equal(t, http.StatusOK, status(t, client, "http://http/openapi.json", ""))
	require.Equal(t, http.StatusOK, status(t, client, "http://http/docs", ""))
	require.Contains(t, page(t, client, "http://admin/metrics"), "postrider_ingress_db_pool_connections ")
	require.Equal(t, http.StatusNotFound, status(t, client, "http://http/metrics", ""), "not on the public listener")
	require.Equal(t, http.StatusUnauthorized, status(t, client, "http://http/v1/queues", ""))
	require.Eventually(t, func() bool { return status(t, client, "http://http/v1/admin/tenants", adminKey) == http.StatusOK }, 10*time.Second, 10*time.Millisecond)
	require.Equal(t, http.StatusServiceUnavailable, status(t, client, "http://http/v1/queues", adminKey))
	require.Equal(t, http.StatusOK, status(t, client, "http://http/v1/admin/nodes", adminKey), "a directory that is not made yet is empty")

	stop()
	require.NoError(t, <-ended)
}

func TestWithAuthenticationOffEverybodyIsTheDefaultTenantsAdministrator(t *testing.T) {
	t.Parallel()
	client, _, _ := process(t, func(c *ingress.Config) { c.Auth = "off" })
	require.Equal(t, http.StatusOK, status(t, client, "http://http/v1/admin/tenants", ""))
}

func TestStoppingAtAnyMomentIsClean(t *testing.T) {
	t.Parallel()
	for i := range 8 {
		_, stop, ended := process(t)
		time.AfterFunc(time.Duration(i*i)*2*time.Millisecond, stop)
		require.NoError(t, <-ended)
	}
}
