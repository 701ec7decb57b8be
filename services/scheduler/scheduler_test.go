package scheduler_test

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
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
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/run"
	"postrider.dev/services/scheduler"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const patience = 30 * time.Second

// node is a running scheduler.
type node struct {
	t    *testing.T
	env  run.Env
	http *http.Client
	stop func()
}

func newEnv() run.Env {
	network := memnet.New()
	return run.Env{
		Log: zap.NewNop(), Metrics: prometheus.NewRegistry(), Traces: noop.NewTracerProvider(), Clock: clock.Real{},
		Listen: network.Listen, Dial: network.Dial,
	}
}

func quick(url string) scheduler.Config {
	cfg := scheduler.Defaults()
	cfg.DatabaseURL = config.Secret(url)
	cfg.Migrate = false
	cfg.Addr, cfg.AdminAddr = "mem:scheduler", "mem:admin"
	cfg.CampaignEvery = 20 * time.Millisecond
	return cfg
}

func start(t *testing.T, cfg scheduler.Config) *node {
	t.Helper()
	require.NoError(t, cfg.Validate())
	env := newEnv()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- scheduler.Run(ctx, cfg, env) }()
	n := &node{t: t, env: env, http: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return env.Dial(ctx, cfg.AdminAddr) },
	}}}
	stopped := false
	n.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(n.stop)
	return n
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

// leader is the answer of /internal/leader.
type leader struct {
	Holder  string `json:"holder"`
	Leading bool   `json:"leading"`
	Epoch   int64  `json:"epoch,string"`
	Changes int    `json:"changes"`
	Error   string `json:"error"`
}

func (n *node) leader() leader {
	n.t.Helper()
	status, body := n.get("/internal/leader")
	require.Equal(n.t, http.StatusOK, status, body)
	var l leader
	require.NoError(n.t, json.Unmarshal([]byte(body), &l))
	return l
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	require.Eventually(t, is, patience, 10*time.Millisecond, what)
}

func TestStandbyTakesOverFromADrainedLeaderWithAGreaterEpoch(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDatabase(t, pgtest.Roles{}, scheduler.Migrations())
	first := start(t, quick(d.URL()))
	eventually(t, "the first leads", func() bool { return first.leader().Leading })
	standby := start(t, quick(d.URL()))
	status, body := standby.get("/readyz?verbose")
	require.Equal(t, http.StatusOK, status, body)
	require.False(t, standby.leader().Leading)

	epoch := first.leader().Epoch
	first.stop()

	eventually(t, "the standby leads", func() bool { return standby.leader().Leading })
	require.Greater(t, standby.leader().Epoch, epoch)
	var holder string
	var stored int64
	db := d.Open(pg.Options{})
	require.NoError(t, db.QueryRow(t.Context(), "SELECT holder, epoch FROM scheduler.leaders").Scan(&holder, &stored))
	require.Equal(t, standby.leader().Holder, holder)
	require.Equal(t, standby.leader().Epoch, stored)
}

func TestLeaderWhoseSessionIsKilledLeadsOnOnlyWithAGreaterEpoch(t *testing.T) {
	t.Parallel()
	d := pgtest.NewDatabase(t, pgtest.Roles{}, scheduler.Migrations())
	n := start(t, quick(d.URL()))
	eventually(t, "it leads", func() bool { return n.leader().Leading })
	before := n.leader()

	_, err := d.Open(pg.Options{}).Exec(t.Context(),
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'postrider-scheduler-elector'")
	require.NoError(t, err)

	eventually(t, "it leads again", func() bool { l := n.leader(); return l.Leading && l.Epoch > before.Epoch })
	require.Equal(t, before.Changes+2, n.leader().Changes)
}

func TestMetricsAndHealthTellTheLeader(t *testing.T) {
	t.Parallel()
	n := start(t, quick(pgtest.NewDatabase(t, pgtest.Roles{}, scheduler.Migrations()).URL()))
	eventually(t, "it leads", func() bool { return n.leader().Leading })

	_, metrics := n.get("/metrics")
	for _, line := range []string{"postrider_scheduler_is_leader 1", "postrider_scheduler_epoch 1", "postrider_scheduler_leader_changes_total 1", "postrider_scheduler_db_pool_connections"} {
		require.Contains(t, metrics, line)
	}
	conn, err := grpcclient.Dial(n.env, "mem:scheduler", "")
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // a test's connection
	health, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, health.GetStatus())
}

func TestSchedulerRunsUnderItsOwnRole(t *testing.T) {
	t.Parallel()
	sql, err := os.ReadFile("../../deploy/postgres/roles.sql")
	require.NoError(t, err)
	d := pgtest.NewDatabase(t, pgtest.Roles{SQL: string(sql), Prefix: "postrider_"})
	cfg := quick(d.URLAs("scheduler"))
	cfg.Migrate = true

	n := start(t, cfg)

	eventually(t, "it leads", func() bool { return n.leader().Leading })
}

func TestConfigReportsEveryProblem(t *testing.T) {
	t.Parallel()
	cfg := scheduler.Defaults()
	cfg.Addr, cfg.ProofEvery, cfg.CampaignEvery = "0.0.0.0:7406", cfg.TrustTTL, 0

	err := cfg.Validate()

	for _, name := range []string{"DATABASE_URL", "ADDR", "PROOF_EVERY", "CAMPAIGN_EVERY"} {
		require.ErrorContains(t, err, name)
	}
	cfg = scheduler.Defaults()
	cfg.DatabaseURL = "postgres://x"
	require.NoError(t, cfg.Validate())
}

func TestRandomCancelsEndCleanly(t *testing.T) {
	t.Parallel()
	cfg := quick(pgtest.NewDatabase(t, pgtest.Roles{}, scheduler.Migrations()).URL())
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.Int64N(int64(20*time.Millisecond))))
		err := scheduler.Run(ctx, cfg, newEnv())
		cancel()
		if err != nil { // cut off while it opened
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
	}
	n := start(t, cfg)
	eventually(t, "the lock is free", func() bool { return n.leader().Leading })
}
