package chaos

import (
	"context"
	"errors"
	"flag"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/redisconn"
	"postrider.dev/pkg/redistest"
	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
	"postrider.dev/tests/hammer"
	"postrider.dev/tests/invariant"
)

var (
	length = flag.Duration("chaos.for", 12*time.Second, "how long faults strike")
	seed   = flag.Uint64("chaos.seed", 0, "what decides the faults; 0: a new one")
)

var binaries fleet.Binaries //nolint:gochecknoglobals // one build a test process

const (
	hosts = 2
	// recovery bounds what follows the last fault: everything runs again and everything is consumed.
	recovery = 10 * time.Minute
)

func TestMain(m *testing.M) {
	redisconn.SilenceDriver()
	// The proxy between the hosts leaves a goroutine of its own behind, now and then, when it is cut while it is slow: it sends to nobody.
	pgtest.Main(m, redistest.IgnoreProbe(), goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run"))
}

func TestNoFaultLosesWhatIsAcknowledgedOrBringsBackWhatIsAcked(t *testing.T) { //nolint:paralleltest // it needs the machine
	report := &Report{Seed: *seed, Length: *length, faults: map[Kind]int{}}
	if report.Seed == 0 {
		report.Seed = uint64(time.Now().UnixNano())
	}
	plan := Plan(report.Seed, report.Length, hosts)
	t.Logf("seed %d: %d faults in %s", report.Seed, len(plan), report.Length)
	network := &network{t: t}
	f := fleet.StartProcessesWith(t, &binaries, fleet.ProcessOptions{
		Hosts: hosts, Singles: true, Through: network.through, SmallSpools: true, Mesh: true, Redis: true,
	})
	ctx, cancel := context.WithTimeout(t.Context(), report.Length+2*recovery)
	defer cancel()
	consuming, stopConsuming := context.WithCancel(ctx)
	defer stopConsuming()
	l := &load{
		t: t, record: hammer.NewRecorder(), tenants: tenants(t, f), stop: make(chan struct{}),
		dial: func(key string, first int) *postrider.Client {
			return fleet.Dial(t, key, f.Hosts[first].GRPC, f.Hosts[1-first].GRPC)
		},
	}
	l.start(ctx, consuming)

	world := newWorld(f, network)
	struck := strike(ctx, world, plan, report)
	for _, p := range f.All() {
		struck = errors.Join(struck, p.Revive(ctx))
		p.AwaitReady(t)
	}
	close(l.stop)
	settled, done := context.WithTimeout(ctx, recovery)
	defer done()
	err := errors.Join(struck, l.producers.Wait(), l.drained(settled))
	stopConsuming()
	err = errors.Join(err, l.consumers.Wait())

	events := l.record.Events()
	report.read(events)
	report.refused = world.refused.Load()
	t.Log("\n" + report.String())
	if err != nil || t.Failed() {
		t.Logf("the faults were: %+v", plan)
	}
	require.NoError(t, err)
	require.NoError(t, report.Counts())
	violations := invariant.All(events, invariant.Drained()...)
	for _, v := range violations[:min(5, len(violations))] {
		t.Errorf("seed %d: %s", report.Seed, v)
	}
	require.Empty(t, violations[min(5, len(violations)):], "and more")
}

// strike does every fault of the plan at its time and returns when all are mended.
func strike(ctx context.Context, w *World, plan []Fault, report *Report) error {
	start := time.Now()
	var faults errgroup.Group
	for _, f := range plan {
		hold(ctx, f.At-time.Since(start))
		faults.Go(func() error {
			if err := w.Strike(ctx, f); err != nil {
				return err
			}
			report.struck(f.Kind)
			return nil
		})
	}
	return faults.Wait()
}

// tenants are the default tenant and one more.
func tenants(t *testing.T, f *fleet.Processes) []tenant {
	t.Helper()
	conn, err := grpc.NewClient(f.Hosts[0].GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // it was used
	admin := adminv1.NewAdminServiceClient(conn)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+fleet.AdminKey)
	_, err = admin.CreateTenant(ctx, &adminv1.CreateTenantRequest{Id: "acme"})
	require.NoError(t, err)
	made, err := admin.CreateAPIKey(ctx, &adminv1.CreateAPIKeyRequest{Tenant: "acme", Name: "chaos", Role: adminv1.Role_ROLE_ADMIN})
	require.NoError(t, err)
	return []tenant{{name: "default", key: fleet.AdminKey}, {name: "acme", key: made.GetSecret()}}
}
