// Package hosttest runs one whole host in a test's process, over a private database.
package hosttest

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/run"
	"postrider.dev/stack"
)

// AdminKey is the bootstrap admin key of the host.
const AdminKey = "prk_admin_0123456789abcdefghijklmnopqrstuv"

// ClusterSecret is the host's.
const ClusterSecret = "a-secret-of-the-tests-only"

// startPatience bounds the start of a host on a busy machine.
const startPatience = 60 * time.Second

// Host is a running host. HTTP, GRPC and Admin are host:port.
type Host struct {
	HTTP, GRPC, Admin string
	DB                *pgtest.Database

	stop func() error
}

// Stop drains the host, waits for its end and returns how it ended.
func (h *Host) Stop() error { return h.stop() }

// Start runs a host that logs to log until the test ends.
func Start(t testing.TB, log *zap.Logger) *Host {
	t.Helper()
	open := map[string]net.Listener{} // opened before the host starts, so that no other process takes the ports
	listen := func() string {
		l, err := memnet.ListenTCP(t.Context(), "127.0.0.1:0")
		require.NoError(t, err)
		open[l.Addr().String()] = l
		t.Cleanup(func() { _ = l.Close() })
		return l.Addr().String()
	}
	h := &Host{DB: pgtest.NewDatabase(t, pgtest.Roles{}, stack.Migrations()...), HTTP: listen(), GRPC: listen(), Admin: listen()}
	cfg, err := stack.Load([]string{
		"POSTRIDER_DATABASE_URL=" + h.DB.URL(), "POSTRIDER_MIGRATE=false", "POSTRIDER_HOST_ID=host-1", "POSTRIDER_CLUSTER_SECRET=" + ClusterSecret,
		"POSTRIDER_INGRESS_ADMIN_KEY=" + AdminKey, "POSTRIDER_INGRESS_HTTP_ADDR=" + h.HTTP, "POSTRIDER_INGRESS_GRPC_ADDR=" + h.GRPC,
		"POSTRIDER_ADMIN_ADDR=" + h.Admin,
	})
	require.NoError(t, err)
	require.NoError(t, cfg.Validate())
	env := run.Env{
		Log: log, Metrics: prometheus.NewRegistry(), Traces: noop.NewTracerProvider(), Clock: clock.Real{}, Dial: memnet.DialTCP,
		Listen: func(ctx context.Context, addr string) (net.Listener, error) {
			if l, ok := open[addr]; ok {
				return l, nil
			}
			return memnet.ListenTCP(ctx, addr)
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- stack.Run(ctx, cfg, env, func() { close(ready) }) }() // awaited by stop
	stopped := false
	h.stop = func() error {
		if stopped {
			return nil
		}
		stopped = true
		cancel()
		return <-ended
	}
	t.Cleanup(func() { require.NoError(t, h.stop(), "drain") })
	select {
	case <-ready:
	case err := <-ended:
		stopped = true
		t.Fatalf("the host ended before it was ready: %v", err)
	case <-time.After(startPatience): //nolint:forbidigo // real patience, in tests only
		t.Fatalf("the host is not ready after %s", startPatience)
	}
	return h
}
