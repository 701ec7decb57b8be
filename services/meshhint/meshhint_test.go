package meshhint_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/config"
	"postrider.dev/pkg/grpcclient"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/redistest"
	"postrider.dev/pkg/run"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/meshhint"
)

func TestMain(m *testing.M) { pgtest.Main(m, redistest.IgnoreProbe()) }

// sidecar runs a real sidecar of a host until the test ends or stop is called.
type sidecar struct {
	env  run.Env
	addr string
	stop func()

	mu    sync.Mutex // guards addrs
	addrs []string
}

func start(t *testing.T, db *pgtest.Database, host string, change func(*meshhint.Config)) *sidecar {
	t.Helper()
	network := memnet.New()
	env := run.Env{
		Log: zap.NewNop(), Metrics: prometheus.NewRegistry(), Traces: noop.NewTracerProvider(), Clock: clock.Real{},
		Listen: network.Listen, Dial: network.Dial,
	}
	cfg := meshhint.Defaults()
	cfg.DatabaseURL = config.Secret(db.URL())
	cfg.Migrate = false
	cfg.HostID = host
	cfg.InternalAddr = "mem:meshhint"
	cfg.AdminAddr = "mem:admin"
	cfg.HeartbeatEvery = 100 * time.Millisecond
	cfg.DeadAfter = time.Second
	change(&cfg)
	require.NoError(t, cfg.Validate())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	s := &sidecar{env: env, addr: cfg.InternalAddr}
	env.Listen = s.listen
	go func() { done <- meshhint.Run(ctx, cfg, env) }()
	stopped := false
	s.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(s.stop)
	return s
}

// service is an attached service whose hints the test reads.
type service struct {
	stream grpc.BidiStreamingClient[meshv1.AttachRequest, meshv1.AttachResponse]
	hints  chan *meshv1.Hint
	leave  func()
}

func (s *sidecar) attach(t *testing.T, id string) *service {
	t.Helper()
	conn, err := grpcclient.Dial(s.env, s.addr, "")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := meshv1.NewMeshServiceClient(conn).Attach(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&meshv1.AttachRequest{Announce: &meshv1.Announce{
		NodeId: id, Service: "dispatcher", State: "online", Addresses: map[string]string{"internal": "127.0.0.1:1"}, Version: "v0",
	}}))
	_, err = stream.Recv()
	require.NoError(t, err)
	svc := &service{stream: stream, hints: make(chan *meshv1.Hint, 10_000)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			for _, h := range m.GetHints() {
				svc.hints <- h
			}
		}
	}()
	svc.leave = func() {
		cancel()
		<-ended
		_ = conn.Close()
	}
	t.Cleanup(svc.leave)
	return svc
}

func (s *service) tell(t *testing.T, queue string) {
	t.Helper()
	require.NoError(t, s.stream.Send(&meshv1.AttachRequest{Hints: []*meshv1.Hint{
		{Kind: &meshv1.Hint_MessageAvailable{MessageAvailable: &meshv1.MessageAvailable{Tenant: new("default"), Queue: queue}}},
	}}))
}

// await returns when a hint that fits arrives; others are passed over.
func (s *service) await(t *testing.T, what string, fits func(*meshv1.Hint) bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for {
		select {
		case h := <-s.hints:
			if fits(h) {
				return
			}
		case <-deadline.C:
			t.Fatalf("no hint %s arrived", what)
		}
	}
}

// awaitWhile repeats what makes a hint until one that fits arrives: subscriptions may still be on their way.
func (s *service) awaitWhile(t *testing.T, again func(), fits func(*meshv1.Hint) bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		again()
		select {
		case h := <-s.hints:
			return fits(h)
		default:
			return false
		}
	}, 10*time.Second, 20*time.Millisecond)
}

func available(queue string) func(*meshv1.Hint) bool {
	return func(h *meshv1.Hint) bool { return h.GetMessageAvailable().GetQueue() == queue }
}

func everything(h *meshv1.Hint) bool { return h.GetEverythingChanged() != nil }

// state is what the directory says of a node; empty before it says anything.
func state(t *testing.T, db *pgtest.Database, id string) (host, state string) {
	t.Helper()
	err := db.Open(pg.Options{}).QueryRow(t.Context(), `SELECT coalesce(max(host_id), ''), coalesce(max(state), '') FROM mesh.directory() WHERE node_id = $1`, id).Scan(&host, &state)
	require.NoError(t, err)
	return host, state
}

func eventually(t *testing.T, f func() error) {
	t.Helper()
	var err error
	require.Eventually(t, func() bool { err = f(); return err == nil }, 10*time.Second, 20*time.Millisecond, "%v", err)
}

func wantState(t *testing.T, db *pgtest.Database, id, want string) func() error {
	return func() error {
		if _, got := state(t, db, id); got != want {
			return fmt.Errorf("node %s is %s, not %s", id, got, want)
		}
		return nil
	}
}

func TestAHintReachesTheOtherHostsAndTheOtherServicesOfItsOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, pgtest.Roles{}, meshhint.Migrations())
	redis := redistest.Start(t)
	use := func(c *meshhint.Config) { c.RedisURL = config.Secret(redis.URL()) }
	a, b := start(t, db, "host-a", use), start(t, db, "host-b", use)
	pusher, neighbour, far := a.attach(t, "a-1"), a.attach(t, "a-2"), b.attach(t, "b-1")

	far.awaitWhile(t, func() { pusher.tell(t, "orders") }, available("orders"))

	neighbour.await(t, "from the own host", available("orders"))
	neighbour.tell(t, "last")
	pusher.await(t, "from the neighbour", func(h *meshv1.Hint) bool {
		require.NotEqual(t, "orders", h.GetMessageAvailable().GetQueue(), "a service's own hint came back")
		return available("last")(h)
	})
}

func TestWhenRedisComesBackEverythingMayHaveChangedAndHintsFlowAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, pgtest.Roles{}, meshhint.Migrations())
	redis := redistest.Start(t)
	use := func(c *meshhint.Config) { c.RedisURL = config.Secret(redis.URL()) }
	a, b := start(t, db, "host-a", use), start(t, db, "host-b", use)
	pusher, neighbour, far := a.attach(t, "a-1"), a.attach(t, "a-2"), b.attach(t, "b-1")
	far.awaitWhile(t, func() { pusher.tell(t, "first") }, available("first"))
	neighbour.await(t, "of the first subscription", available("first"))

	redis.Stop()
	pusher.tell(t, "local")
	neighbour.await(t, "without redis", available("local"))
	redis.Restart()
	far.await(t, "of the second subscription", everything)
	neighbour.await(t, "of the second subscription", everything)
	pusher.tell(t, "again")

	far.await(t, "after the return", available("again"))
}

func TestAServiceIsOnlineWhileItsStreamLivesAndDeadAtOnceAfterwards(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, pgtest.Roles{}, meshhint.Migrations())
	a := start(t, db, "host-a", func(*meshhint.Config) {})
	svc, other := a.attach(t, "a-1"), a.attach(t, "a-2")

	eventually(t, wantState(t, db, "a-1", "online"))
	host, _ := state(t, db, "a-1")
	require.Equal(t, "host-a", host)
	require.NoError(t, svc.stream.Send(&meshv1.AttachRequest{Announce: &meshv1.Announce{NodeId: "a-1", Service: "dispatcher", State: "draining"}}))
	eventually(t, wantState(t, db, "a-1", "draining"))
	svc.leave()

	eventually(t, wantState(t, db, "a-1", "dead"))
	other.await(t, "that the directory changed", func(h *meshv1.Hint) bool { return h.GetRegistryChanged().GetRegistry() == "nodes" })
	eventually(t, wantState(t, db, "a-2", "online"))
}

func TestASidecarThatEndsDoesNotCallItsServicesDead(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, pgtest.Roles{}, meshhint.Migrations())
	a := start(t, db, "host-a", func(c *meshhint.Config) { c.DeadAfter = time.Hour })
	a.attach(t, "a-1")
	eventually(t, wantState(t, db, "a-1", "online"))

	a.stop()

	_, got := state(t, db, "a-1")
	require.Equal(t, "online", got)
}

func TestANodeWithoutHeartbeatIsDeadByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, pgtest.Roles{}, meshhint.Migrations())
	conn := db.Open(pg.Options{})
	clk := pgtest.FreezeNow(t, conn, "mesh", time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	announce := func(id string, deadAfter float64) {
		_, err := conn.Exec(t.Context(), `SELECT mesh.announce($1)`, fmt.Sprintf(
			`[{"id":%q,"host_id":"h","zone":"z","service":"s","state":"online","addresses":{},"version":"v","dead_after":%g}]`, id, deadAfter))
		require.NoError(t, err)
	}
	announce("brief", 2)
	announce("patient", 20)

	clk.Advance(3 * time.Second)

	_, brief := state(t, db, "brief")
	_, patient := state(t, db, "patient")
	require.Equal(t, []string{"dead", "online"}, []string{brief, patient})
}

func TestAnAnnouncementThatCannotBeWrittenIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, pgtest.Roles{}, meshhint.Migrations())
	a := start(t, db, "host-a", func(*meshhint.Config) {})
	conn, err := grpcclient.Dial(a.env, a.addr, "")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	for name, bad := range map[string]*meshv1.Announce{
		"none":          nil,
		"no id":         {Service: "s", State: "online"},
		"no service":    {NodeId: "n", State: "online"},
		"unknown state": {NodeId: "n", Service: "s", State: "fine"},
		"dead":          {NodeId: "n", Service: "s", State: "dead"},
	} {
		stream, err := meshv1.NewMeshServiceClient(conn).Attach(t.Context())
		require.NoError(t, err)
		require.NoError(t, stream.Send(&meshv1.AttachRequest{Announce: bad}))
		_, err = stream.Recv()
		require.ErrorContains(t, err, "announce", name)
	}
}

var _ = flag.Bool("update", false, "rewrite migrations/schema.sql")

func TestTheSchemaIsTheGoldenOne(t *testing.T) {
	t.Parallel()
	pgtest.GoldenSchema(t, "migrations/schema.sql", meshhint.Migrations())
}

func TestBadSettingsAreAllReported(t *testing.T) {
	t.Parallel()
	cfg := meshhint.Defaults()
	cfg.DatabaseURL = "postgres://x"
	require.NoError(t, cfg.Validate())
	cfg.HintCarriers = "pigeon"
	cfg.HeartbeatEvery = time.Millisecond
	cfg.DeadAfter = time.Microsecond
	cfg.InternalAddr = "0.0.0.0:7405"

	err := cfg.Validate()

	for _, part := range []string{"pigeon", "HEARTBEAT_EVERY", "INTERNAL_ADDR"} {
		require.ErrorContains(t, err, part)
	}
}

func setMode(t *testing.T, db *pg.DB, name string, enabled bool, reason, by string) (version int64, changed bool) {
	t.Helper()
	var name2 string
	require.NoError(t, db.QueryRow(t.Context(), `SELECT name, version, changed FROM mesh.set_mode($1, $2, $3, $4)`, name, enabled, reason, by).
		Scan(&name2, &version, &changed))
	require.Equal(t, name, name2)
	return version, changed
}

func TestAModeIsOffUntilItIsSetAndEachChangeIsAVersionOnDatabaseTime(t *testing.T) {
	t.Parallel()
	conn := pgtest.NewDatabase(t, pgtest.Roles{}, meshhint.Migrations()).Open(pg.Options{})
	t0 := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pgtest.FreezeNow(t, conn, "mesh", t0)
	list := func() (out []string) {
		rows, err := conn.Query(t.Context(),
			`SELECT concat_ws(' ', name, enabled, reason, changed_by, version, to_char(changed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')) FROM mesh.modes()`)
		require.NoError(t, err)
		out, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return out
	}
	require.Equal(t, []string{"maintenance f   0", "pop_maintenance f   0"}, list())

	first, changed := setMode(t, conn, "pop_maintenance", true, "moving", "ann")
	again, changedAgain := setMode(t, conn, "pop_maintenance", true, "moving", "bob")
	other, changedOther := setMode(t, conn, "pop_maintenance", true, "still moving", "bob")

	require.Equal(t, []bool{true, false, true}, []bool{changed, changedAgain, changedOther})
	require.Equal(t, []int64{1, 1, 2}, []int64{first, again, other})
	require.Equal(t, []string{"maintenance f   0", "pop_maintenance t still moving bob 2 2026-01-01"}, list())
	_, err := conn.Exec(t.Context(), `SELECT mesh.set_mode('nap', true, '', 'ann')`)
	require.ErrorContains(t, err, "modes_name_ck")
}

func TestWhoSetsAModeWhileAnotherDoesSeesTheOthersChange(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, pgtest.Roles{}, meshhint.Migrations()).Open(pg.Options{MaxConns: 8})
	var setters sync.WaitGroup
	var versions [8]int64
	var errs [8]error

	for i := range versions {
		setters.Go(func() {
			errs[i] = db.QueryRow(t.Context(), `SELECT version FROM mesh.set_mode('maintenance', $1, '', 'ann')`, i%2 == 0).Scan(&versions[i])
		})
	}

	setters.Wait()
	require.NoError(t, errors.Join(errs[:]...))
	last := slices.Max(versions[:])
	var stored int64
	require.NoError(t, db.QueryRow(t.Context(), `SELECT max(version) FROM mesh.modes()`).Scan(&stored))
	require.Equal(t, stored, last, "the answers do not go up to what is stored")
}

func TestAHintThatModesChangedReachesTheOtherHosts(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, pgtest.Roles{}, meshhint.Migrations())
	redis := redistest.Start(t)
	use := func(c *meshhint.Config) { c.RedisURL = config.Secret(redis.URL()) }
	a, b := start(t, db, "host-a", use), start(t, db, "host-b", use)
	setter, far := a.attach(t, "a-1"), b.attach(t, "b-1")

	far.awaitWhile(t, func() {
		require.NoError(t, setter.stream.Send(&meshv1.AttachRequest{Hints: []*meshv1.Hint{
			{Kind: &meshv1.Hint_ModesChanged{ModesChanged: &meshv1.ModesChanged{Mode: "pop_maintenance"}}},
		}}))
	}, func(h *meshv1.Hint) bool { return h.GetModesChanged().GetMode() == "pop_maintenance" })
}
