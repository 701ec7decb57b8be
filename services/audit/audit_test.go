package audit_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
	"google.golang.org/grpc/health/grpc_health_v1"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/config"
	"postrider.dev/pkg/grpcclient"
	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/run"
	"postrider.dev/services/audit"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const patience = 30 * time.Second

func newEnv(clk clock.Clock) run.Env {
	network := memnet.New()
	return run.Env{
		Log: zap.NewNop(), Metrics: prometheus.NewRegistry(), Traces: noop.NewTracerProvider(), Clock: clk,
		Listen: network.Listen, Dial: network.Dial,
	}
}

func configure(url string) audit.Config {
	cfg := audit.Defaults()
	cfg.DatabaseURL = config.Secret(url)
	cfg.Addr, cfg.AdminAddr = "mem:audit", "mem:admin"
	return cfg
}

// node is a running audit service.
type node struct {
	t    *testing.T
	env  run.Env
	http *http.Client
}

func start(t *testing.T, cfg audit.Config, clk clock.Clock) *node {
	t.Helper()
	require.NoError(t, cfg.Validate())
	env := newEnv(clk)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- audit.Run(ctx, cfg, env) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return &node{t: t, env: env, http: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return env.Dial(ctx, cfg.AdminAddr) },
	}}}
}

func (n *node) get(path string) (int, string) {
	n.t.Helper()
	req, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, "http://admin"+path, nil)
	require.NoError(n.t, err)
	resp, err := n.http.Do(req)
	require.NoError(n.t, err)
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err := io.ReadAll(resp.Body)
	require.NoError(n.t, err)
	return resp.StatusCode, string(body)
}

// shows waits until the metrics hold every line.
func (n *node) shows(lines ...string) {
	n.t.Helper()
	var metrics string
	require.Eventually(n.t, func() bool {
		_, metrics = n.get("/metrics")
		for _, line := range lines {
			if !strings.Contains(metrics, line+"\n") {
				return false
			}
		}
		return true
	}, patience, 10*time.Millisecond, "%v", lines)
}

func TestOutboxIsMeasuredByTheDatabasesTime(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDatabase(t, pgtest.Roles{}, audit.Migrations())
	db := d.Open(pg.Options{})
	frozen := pgtest.FreezeNow(t, db, "audit", time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	cfg := configure(d.URL())
	cfg.Migrate = false
	cfg.MeasureEvery = time.Second
	n := start(t, cfg, clock.Real{})
	n.shows("postrider_audit_outbox_entries 0", "postrider_audit_outbox_oldest_seconds 0")

	for range 3 {
		_, err := db.Exec(t.Context(), "SELECT audit.enqueue('acme', 'key:1', 'queue.create', 'queues/a')")
		require.NoError(t, err)
		frozen.Advance(30 * time.Second)
	}

	n.shows("postrider_audit_outbox_entries 3", "postrider_audit_outbox_oldest_seconds 90")
}

func TestHealthIsServedUnderTheServicesOwnRole(t *testing.T) {
	t.Parallel()
	sql, err := os.ReadFile("../../deploy/postgres/roles.sql")
	require.NoError(t, err)
	d := pgtest.NewDatabase(t, pgtest.Roles{SQL: string(sql), Prefix: "postrider_"})
	n := start(t, configure(d.URLAs("audit")), clock.Real{}) // migrates itself

	n.shows("postrider_audit_outbox_entries 0", "postrider_audit_outbox_looks_failed_total 0")
	status, body := n.get("/readyz?verbose")
	require.Equal(t, http.StatusOK, status, body)
	conn, err := grpcclient.Dial(n.env, "mem:audit", "")
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // a test's connection
	health, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, health.GetStatus())
}

func TestServiceOutlivesItsDatabaseAndSaysSo(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, localpg.Options{})
	_, err := migrate.Up(t.Context(), clock.Real{}, server.DSN("postgres"), audit.Migrations())
	require.NoError(t, err)
	cfg := configure(server.DSN("postgres"))
	cfg.MeasureEvery = time.Second
	n := start(t, cfg, clock.Real{})
	n.shows("postrider_audit_outbox_entries 0")

	require.NoError(t, server.Kill(t.Context()))
	status, body := n.get("/readyz")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "database")
	status, _ = n.get("/livez")
	require.Equal(t, http.StatusOK, status)
	n.shows("postrider_audit_outbox_looks_failed_total 1")
	require.NoError(t, server.Restart(t.Context()))

	require.Eventually(t, func() bool { status, _ := n.get("/readyz"); return status == http.StatusOK }, patience, 10*time.Millisecond)
}

func TestConfigReportsEveryProblem(t *testing.T) {
	t.Parallel()
	cfg := audit.Defaults()
	cfg.Addr, cfg.MeasureEvery = "0.0.0.0:7407", 0

	err := cfg.Validate()

	for _, name := range []string{"DATABASE_URL", "ADDR", "MEASURE_EVERY"} {
		require.ErrorContains(t, err, name)
	}
	require.NoError(t, configure("postgres://x").Validate())
}

func TestRandomCancelsEndCleanly(t *testing.T) {
	t.Parallel()
	cfg := configure(pgtest.NewDatabase(t, pgtest.Roles{}, audit.Migrations()).URL())
	cfg.Migrate = false
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.Int64N(int64(20*time.Millisecond))))
		err := audit.Run(ctx, cfg, newEnv(clock.Real{}))
		cancel()
		if err != nil { // cut off while it opened
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
	}
}
