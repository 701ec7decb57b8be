package conformance_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/config"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/run"
	"postrider.dev/services/ingress"
	"postrider.dev/tests/conformance"
	"postrider.dev/tests/conformance/fake"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const adminKey = "prk_admin_0123456789ABCDEFGHIJKLMNOP"

// auditStub stands for the audit service's function, whose own tests are elsewhere.
const auditStub = `CREATE SCHEMA audit; CREATE FUNCTION audit.enqueue(text, text, text, text, jsonb) RETURNS void LANGUAGE sql AS ''`

func TestSurfaceAgainstADispatcherInMemory(t *testing.T) {
	t.Parallel()
	target := start(t)
	conformance.Run(t, target)
}

// start runs an ingress in front of a fake dispatcher until the test ends.
func start(t *testing.T) conformance.Target {
	t.Helper()
	database := pgtest.NewDatabase(t, pgtest.Roles{}, ingress.Migrations())
	_, err := database.Open(pg.Options{}).Exec(t.Context(), auditStub)
	require.NoError(t, err)
	network := memnet.New()
	listeners := map[string]net.Listener{} // by address: opened first, so that no port can be taken meanwhile
	listen := func() string {
		l, err := memnet.ListenTCP(t.Context(), "127.0.0.1:0")
		require.NoError(t, err)
		listeners[l.Addr().String()] = l
		return l.Addr().String()
	}
	env := run.Env{
		Log: zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel)), Metrics: prometheus.NewRegistry(), Traces: noop.NewTracerProvider(), Clock: clock.Real{},
		Dial: network.Dial,
		Listen: func(ctx context.Context, addr string) (net.Listener, error) {
			if l := listeners[addr]; l != nil {
				return l, nil
			}
			return network.Listen(ctx, addr)
		},
	}
	cfg := ingress.Defaults()
	cfg.DatabaseURL = config.Secret(database.URL())
	cfg.HTTPAddr, cfg.GRPCAddr, cfg.AdminAddr = listen(), listen(), listen()
	cfg.DispatcherAddrs = []string{"mem:dispatcher"}
	cfg.AdminKey = adminKey
	cfg.DrainTimeout = 5 * time.Second

	dispatcherListener, err := network.Listen(t.Context(), "mem:dispatcher")
	require.NoError(t, err)
	dispatcher := fake.New()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() {
		ended <- run.Layers(ctx,
			[]run.Part{{Name: "dispatcher", Run: func(ctx context.Context) error { return dispatcher.Serve(ctx, dispatcherListener) }}},
			[]run.Part{{Name: "ingress", Run: func(ctx context.Context) error { return ingress.Run(ctx, cfg, env) }}})
	}()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	target := conformance.Target{BaseURL: "http://" + cfg.HTTPAddr, GRPC: cfg.GRPCAddr, Key: adminKey}
	require.Eventually(t, func() bool {
		resp, err := http.Get(target.BaseURL + "/readyz") //nolint:noctx // polled
		if err != nil {
			return false
		}
		defer resp.Body.Close() //nolint:errcheck // nothing is read
		return resp.StatusCode == http.StatusOK
	}, 20*time.Second, 10*time.Millisecond)
	return target
}
