package dispatcher_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/config"
	"postrider.dev/pkg/grpcclient"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/run"
	"postrider.dev/pkg/run/runtest"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const addr = "mem:dispatcher"

// start runs a dispatcher on the database until stop, or the test's end.
func start(t *testing.T, url string, change ...func(*dispatcher.Config)) (env run.Env, stop func() error) {
	t.Helper()
	env = runtest.New(t)
	cfg := dispatcher.Defaults()
	cfg.DatabaseURL = config.Secret(url)
	cfg.Addr, cfg.AdminAddr, cfg.MeshhintAddr = addr, "mem:admin", ""
	cfg.Migrate = false
	for _, c := range change {
		c(&cfg)
	}
	require.NoError(t, cfg.Validate())
	stop = runtest.Go(t, func(ctx context.Context) error { return dispatcher.Run(ctx, cfg, env) })
	return env, stop
}

func database(t *testing.T) *pgtest.Database {
	t.Helper()
	return pgtest.NewDatabase(t, pgtest.Roles{}, dispatcher.Migrations())
}

// wire is an exchange stream as an ingress has it.
type wire struct {
	t      *testing.T
	stream grpc.BidiStreamingClient[dispatcherv1.ExchangeRequest, dispatcherv1.ExchangeResponse]
	conn   *grpc.ClientConn
	id     uint64
	cancel context.CancelFunc
}

func dial(t *testing.T, env run.Env) *wire {
	t.Helper()
	conn, err := grpcclient.Dial(env, addr, "")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	stream, err := dispatcherv1.NewDispatcherServiceClient(conn).Exchange(ctx, grpc.WaitForReady(true))
	require.NoError(t, err)
	w := &wire{t: t, stream: stream, conn: conn, cancel: cancel}
	t.Cleanup(w.close)
	return w
}

func (w *wire) close() {
	w.cancel()
	require.NoError(w.t, w.conn.Close())
	w.t.Cleanup(func() {})
}

// send sends an operation and returns its id.
func (w *wire) send(op *dispatcherv1.Operation) uint64 {
	w.t.Helper()
	w.id++
	op.Id, op.Tenant, op.Actor = w.id, "acme", "test"
	require.NoError(w.t, w.stream.Send(&dispatcherv1.ExchangeRequest{Operations: []*dispatcherv1.Operation{op}}))
	return w.id
}

// receive returns the next result.
func (w *wire) receive() *dispatcherv1.Result {
	w.t.Helper()
	for {
		m, err := w.stream.Recv()
		require.NoError(w.t, err)
		if len(m.GetResults()) > 0 {
			require.Len(w.t, m.GetResults(), 1)
			return m.GetResults()[0]
		}
	}
}

func push(payloads ...string) *dispatcherv1.Operation {
	req := &queuev1.PushRequest{Queue: "q"}
	for _, p := range payloads {
		req.Items = append(req.Items, &queuev1.PushItem{Partition: "a", Payload: []byte(p)})
	}
	return &dispatcherv1.Operation{Op: &dispatcherv1.Operation_Push{Push: req}}
}

func pop(wait time.Duration) *dispatcherv1.Operation {
	return &dispatcherv1.Operation{Op: &dispatcherv1.Operation_Pop{Pop: &queuev1.PopRequest{Queue: "q", Batch: 10, Wait: durationpb.New(wait)}}}
}

func TestAMessageGoesThroughTheExchange(t *testing.T) {
	t.Parallel()
	env, _ := start(t, database(t).URL())
	w := dial(t, env)

	w.send(push("1", "2"))
	pushed := w.receive()
	w.send(pop(0))
	popped := w.receive()
	w.send(&dispatcherv1.Operation{Op: &dispatcherv1.Operation_Ack{Ack: &queuev1.AckRequest{
		Queue: "q", Lease: popped.GetPop().GetLease(), AckRest: true,
	}}})
	acked := w.receive()
	w.send(pop(0))
	empty := w.receive()

	require.Len(t, pushed.GetPush().GetResults(), 2)
	require.Len(t, popped.GetPop().GetDeliveries(), 2)
	require.Equal(t, int32(2), acked.GetAck().GetRestAcked())
	require.Empty(t, empty.GetPop().GetLease())
}

func TestAnOperationThatBreaksARuleIsRefusedAlone(t *testing.T) {
	t.Parallel()
	env, _ := start(t, database(t).URL())
	w := dial(t, env)

	w.send(&dispatcherv1.Operation{Op: &dispatcherv1.Operation_Push{Push: &queuev1.PushRequest{Queue: ""}}})
	refused := w.receive()
	w.send(push("1"))
	pushed := w.receive()

	require.Equal(t, int32(codes.InvalidArgument), refused.GetError().GetCode())
	require.NotNil(t, pushed.GetPush())
}

func TestACancelledPopLeavesNoLease(t *testing.T) {
	t.Parallel()
	db := database(t)
	env, _ := start(t, db.URL())
	w := dial(t, env)

	id := w.send(pop(30 * time.Second))
	w.send(&dispatcherv1.Operation{Op: &dispatcherv1.Operation_Cancel{Cancel: id}})
	cancelled := w.receive()
	w.send(push("1"))
	w.receive()
	w.send(pop(0))
	popped := w.receive()

	require.Equal(t, int32(codes.Canceled), cancelled.GetError().GetCode())
	require.Len(t, popped.GetPop().GetDeliveries(), 1)
}

func TestAnAnswerThatCannotBeSentIsGivenBack(t *testing.T) {
	t.Parallel()
	db := database(t)
	pool := db.Open(pg.Options{})
	env, _ := start(t, db.URL())
	gone, w := dial(t, env), dial(t, env)
	gone.send(pop(30 * time.Second))
	gone.send(push("0")) // proves that the pop was received: operations begin in order
	first := gone.receive()
	require.NotNil(t, first)

	gone.cancel()
	w.send(push("1"))
	w.receive()
	eventually(t, func() error {
		var leases int
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM dispatcher.leases").Scan(&leases); err != nil {
			return err
		}
		if leases > 1 {
			return fmt.Errorf("%d leases", leases)
		}
		return nil
	})
}

func TestDrainSendsParkedPopsAwayAtOnce(t *testing.T) {
	t.Parallel()
	env, stop := start(t, database(t).URL())
	w := dial(t, env)
	w.send(pop(30 * time.Second))
	w.send(push()) // answered with an error; proves that the pop was received
	w.receive()
	clk := clock.Real{}
	began := clk.Now()

	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	sentAway := w.receive()
	err := <-ended

	require.NoError(t, err)
	require.True(t, sentAway.GetPop().GetDraining())
	require.Less(t, clk.Since(began), 10*time.Second)
}

// eventually waits for a fact.
func eventually(t *testing.T, what func() error) {
	t.Helper()
	runtest.Eventually(t, what)
}
