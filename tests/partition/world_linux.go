package partition

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/redistest"
	postrider "postrider.dev/sdk"
	"postrider.dev/stack"
	"postrider.dev/tests/fleet"
)

// The network of each world. Worlds do not see one another, so all have the same.
const (
	hosts  = 3
	shared = "10.77.0.1" // the databases
	wire   = "eth0"      // a host's only way out

	databasePort = "5432"
	meshPort     = "7403"
	dispatchPort = "7402"
	httpPort     = "7400"
	grpcPort     = "7401"
	adminPort    = "7409"
)

// addressOf is the nth host's, from 0.
func addressOf(n int) string { return fmt.Sprintf("10.77.0.%d", n+2) }

// host is one host of a world.
type host struct {
	n       int
	net     *namespace
	process *fleet.Process
	http    string // as the test reaches them
	client  *postrider.Client
}

// world is three hosts and what they share, on a network of their own.
type world struct {
	t     testing.TB
	hub   *namespace // the bridge, and the databases on it
	hosts [hosts]*host
	slow  bool
	late  atomic.Int64 // what a slow world's relays delay by, in nanoseconds
	// shared are the addresses of the databases, as hosts reach them.
	shared map[string]string
	server *localpg.Server
}

// options of a world.
type options struct {
	slow bool     // what passes between hosts, and between them and Redis, can be delayed; PostgreSQL is near
	env  []string // added to the environment of every host
}

// newWorld starts a world and returns when all its hosts know one another.
func newWorld(t testing.TB, bin *fleet.Binaries, o options) *world {
	t.Helper()
	w := &world{t: t, hub: open(t), slow: o.slow}
	w.wire()
	redis := redistest.StartWith(t, redistest.Options{Bind: shared, Enter: w.hub.enter})
	w.database()
	w.shared = map[string]string{"postgres": shared + ":" + databasePort, "redis": redis.Addr()}
	if o.slow {
		w.relays()
	}
	program := bin.Path(t, "postrider")
	spools := t.TempDir()
	for n, h := range w.hosts {
		through := func(port string) string { return newRelay(t, nil, "127.0.0.1:0", h.net, "127.0.0.1:"+port, nil).addr }
		h.http = "http://" + through(httpPort)
		h.client = fleet.Dial(t, fleet.AdminKey, through(grpcPort))
		h.process = fleet.NewProcess(t, fleet.ProcessSpec{
			Name: fmt.Sprintf("host %d", n+1), Admin: through(adminPort), Program: program, Args: []string{"host"},
			Env: append(w.environ(n, filepath.Join(spools, fmt.Sprintf("host-%d", n+1))), o.env...), Enter: h.net.enter,
		})
		h.process.Start(t)
	}
	for _, h := range w.hosts {
		h.process.AwaitReady(t)
	}
	w.within(startPatience, "the hosts know one another", w.whole)
	return w
}

// open makes a namespace that the test closes.
func open(t testing.TB) *namespace {
	t.Helper()
	n, err := newNamespace(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = n.file.Close() })
	return n
}

// wire joins the hosts by a bridge.
func (w *world) wire() {
	w.t.Helper()
	lines := []string{"link add br0 type bridge", "addr add " + shared + "/24 dev br0", "link set br0 up"}
	for n := range w.hosts {
		w.hosts[n] = &host{n: n, net: open(w.t)}
		lines = append(lines, fmt.Sprintf("link add %s type veth peer name %s netns %s", portOf(n), wire, w.hosts[n].net.path()),
			fmt.Sprintf("link set %s master br0 up", portOf(n)))
	}
	require.NoError(w.t, w.hub.ip(w.t.Context(), lines...))
	for n, h := range w.hosts {
		require.NoError(w.t, h.net.ip(w.t.Context(), "addr add "+addressOf(n)+"/24 dev "+wire, "link set "+wire+" up"))
	}
}

// portOf is the bridge's end of the nth host's wire.
func portOf(n int) string { return fmt.Sprintf("port%d", n+1) }

// database starts a PostgreSQL that lets the hosts in.
func (w *world) database() {
	t := w.t
	t.Helper()
	server := pgtest.NewServer(t, localpg.Options{
		MaxConnections: 200, Settings: map[string]string{"listen_addresses": shared, "port": databasePort}, Enter: w.hub.enter,
	})
	w.server = server
	rules, err := os.OpenFile(filepath.Join(server.DataDir(), "pg_hba.conf"), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = rules.WriteString("host all all " + shared + "/24 trust\n")
	require.NoError(t, err)
	require.NoError(t, rules.Close())
	conn, err := pgx.Connect(t.Context(), server.DSN("postgres"))
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), "SELECT pg_reload_conf()")
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	require.NoError(t, stack.Migrate(t.Context(), clock.Real{}, fleet.Secret(server.DSN("postgres")), func(string) {}))
}

// relays puts a relay that can delay before what a host reaches over the network, PostgreSQL excepted.
func (w *world) relays() {
	w.shared["redis"] = newRelay(w.t, w.hub, shared+":0", w.hub, w.shared["redis"], &w.late).addr
	for n := range w.hosts {
		for _, port := range []string{meshPort, dispatchPort} {
			newRelay(w.t, w.hub, shared+":"+slowOf(n, port), w.hub, addressOf(n)+":"+port, &w.late)
		}
	}
}

// slowOf is the port of the shared address at which a port of the nth host is reached through its relay.
func slowOf(n int, port string) string { return fmt.Sprintf("%d%s", n+2, port) }

// environ is the environment of the nth host.
func (w *world) environ(n int, spool string) []string {
	reached := func(port string) string {
		if w.slow {
			return shared + ":" + slowOf(n, port)
		}
		return addressOf(n) + ":" + port
	}
	database := url.URL{Scheme: "postgres", User: url.User("postgres"), Host: w.shared["postgres"], Path: "/postgres", RawQuery: "sslmode=disable"}
	return []string{
		"PATH=" + os.Getenv("PATH"), "POSTRIDER_LOG_LEVEL=info", "POSTRIDER_MIGRATE=false",
		"POSTRIDER_DATABASE_URL=" + database.String(), "POSTRIDER_REDIS_URL=redis://" + w.shared["redis"],
		fmt.Sprintf("POSTRIDER_HOST_ID=host-%d", n+1), "POSTRIDER_CLUSTER_SECRET=" + fleet.ClusterSecret, "POSTRIDER_INGRESS_ADMIN_KEY=" + fleet.AdminKey,
		"POSTRIDER_INGRESS_HTTP_ADDR=127.0.0.1:" + httpPort, "POSTRIDER_INGRESS_GRPC_ADDR=127.0.0.1:" + grpcPort, "POSTRIDER_ADMIN_ADDR=127.0.0.1:" + adminPort,
		"POSTRIDER_DISPATCHER_ADDR=" + addressOf(n) + ":" + dispatchPort, "POSTRIDER_DISPATCHER_ADVERTISE_ADDR=" + reached(dispatchPort),
		"POSTRIDER_MESH_LISTEN=" + addressOf(n) + ":" + meshPort, "POSTRIDER_MESH_ADVERTISE=" + reached(meshPort),
		"POSTRIDER_DISPATCHER_SPOOL_DIR=" + spool,
	}
}

// filters makes the rules of the packets that come in on every host and on the hub.
func (w *world) filters(rules ...string) {
	w.t.Helper()
	for _, n := range []*namespace{w.hub, w.hosts[0].net, w.hosts[1].net, w.hosts[2].net} {
		require.NoError(w.t, n.filter(w.t.Context(), rules, nil))
	}
}
