// Package fleet starts hosts of Postrider for tests: in this process where a test only talks to them, as real processes where it kills them.
package fleet

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/config"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/run"
	postrider "postrider.dev/sdk"
	"postrider.dev/stack"
	"postrider.dev/tests/hintfault"
)

// AdminKey is the bootstrap admin key of every fleet.
const AdminKey = "prk_admin_0123456789abcdefghijklmnopqrstuv"

// ClusterSecret joins the services of every fleet.
const ClusterSecret = "a-secret-of-the-tests-only"

// Options of a fleet.
type Options struct {
	// Hosts; 1 when 0.
	Hosts int
	// RedisURL carries hints between hosts; empty: none.
	RedisURL string
	// Mesh joins the hosts by TCP.
	Mesh bool
	// Change edits each host's configuration before it starts.
	Change func(host int, cfg *stack.Config)
}

// Host is one running host.
type Host struct {
	// HTTP is a base URL, GRPC and Admin are host:port.
	HTTP, GRPC, Admin string

	stop func()
}

// Stop drains the host and waits for its end.
func (h *Host) Stop() { h.stop() }

// Fleet is some hosts over one database.
type Fleet struct {
	DB    *pgtest.Database
	Hosts []*Host
}

// Start runs hosts in this process, each with all services, over a private database. They end with the test.
func Start(t testing.TB, o Options) *Fleet {
	t.Helper()
	f := &Fleet{DB: pgtest.NewDatabase(t, pgtest.Roles{}, stack.Migrations()...)}
	for range max(o.Hosts, 1) {
		f.StartHost(t, o)
	}
	return f
}

// StartHost adds a host to the fleet.
func (f *Fleet) StartHost(t testing.TB, o Options) *Host {
	t.Helper()
	n := len(f.Hosts)
	ports := listeners{}
	http, grpc, admin, internal := ports.open(t), ports.open(t), ports.open(t), ports.open(t)
	mesh := ""
	if o.Mesh {
		mesh = ports.open(t)
	}
	cfg, err := stack.Load([]string{
		"POSTRIDER_MESH_LISTEN=" + mesh,
		"POSTRIDER_HINT_CARRIERS=" + os.Getenv("POSTRIDER_HINT_CARRIERS"), // the suite is run once more without hints
		"POSTRIDER_DATABASE_URL=" + f.DB.URL(), "POSTRIDER_REDIS_URL=" + o.RedisURL, "POSTRIDER_MIGRATE=false",
		"POSTRIDER_HOST_ID=" + fmt.Sprintf("host-%d", n+1), "POSTRIDER_CLUSTER_SECRET=" + ClusterSecret,
		"POSTRIDER_INGRESS_ADMIN_KEY=" + AdminKey, "POSTRIDER_INGRESS_HTTP_ADDR=" + http, "POSTRIDER_INGRESS_GRPC_ADDR=" + grpc,
		"POSTRIDER_ADMIN_ADDR=" + admin, "POSTRIDER_DISPATCHER_ADDR=" + internal,
	})
	require.NoError(t, err)
	if o.Change != nil {
		o.Change(n, &cfg)
	}
	require.NoError(t, cfg.Validate())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // the host ends at cleanup, drained
	ended, ready := make(chan error, 1), make(chan struct{})
	env := run.Env{
		Log: zap.NewNop(), Metrics: prometheus.NewRegistry(), Traces: noop.NewTracerProvider(), Clock: clock.Real{},
		Listen: ports.listen, Dial: memnet.DialTCP,
	}
	seam, err := hintfault.Seam(hintfault.FromEnv())
	require.NoError(t, err)
	go func() { ended <- stack.RunWith(ctx, cfg, env, func() { close(ready) }, seam) }()
	h := &Host{HTTP: "http://" + http, GRPC: grpc, Admin: admin}
	stopped := false
	h.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-ended, "drain of host %d", n+1)
		}
	}
	t.Cleanup(h.stop)
	select {
	case <-ready:
	case err := <-ended:
		stopped = true
		t.Fatalf("host %d ended before it was ready: %v", n+1, err)
	case <-time.After(startPatience):
		t.Fatalf("host %d is not ready after %s", n+1, startPatience)
	}
	f.Hosts = append(f.Hosts, h)
	return h
}

// startPatience bounds the start of a host, under -race on a busy machine.
const startPatience = 60 * time.Second

// Client talks to the hosts given by index, or to all. It is closed with the test.
func (f *Fleet) Client(t testing.TB, hosts ...int) *postrider.Client {
	t.Helper()
	var addrs []string
	for i, h := range f.Hosts {
		if len(hosts) == 0 {
			addrs = append(addrs, h.GRPC)
		}
		for _, want := range hosts {
			if want == i {
				addrs = append(addrs, h.GRPC)
			}
		}
	}
	return Dial(t, AdminKey, addrs...)
}

// Dial returns a client that is closed with the test.
func Dial(t testing.TB, key string, addrs ...string) *postrider.Client {
	t.Helper()
	c, err := postrider.Dial(addrs, key)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// listeners holds ports that are open before a host starts, so that no other process can take them meanwhile.
type listeners map[string]net.Listener

func (l listeners) open(t testing.TB) string {
	t.Helper()
	lis, err := memnet.ListenTCP(t.Context(), "127.0.0.1:0")
	require.NoError(t, err)
	l[lis.Addr().String()] = lis
	t.Cleanup(func() { _ = lis.Close() })
	return lis.Addr().String()
}

func (l listeners) listen(ctx context.Context, addr string) (net.Listener, error) {
	if lis, ok := l[addr]; ok {
		return lis, nil
	}
	return memnet.ListenTCP(ctx, addr)
}

// Secret makes a setting of a text.
func Secret(s string) config.Secret { return config.Secret(s) }
