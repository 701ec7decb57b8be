package engine_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/grpcclient"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/run"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/ingress/internal/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dispatcher is a scripted peer: a test reads what arrives and answers by hand.
type dispatcher struct {
	dispatcherv1.UnimplementedDispatcherServiceServer

	t        *testing.T
	addr     string
	network  *memnet.Network
	server   *grpc.Server
	arrived  chan arrival
	auto     bool // answer pushes at once
	finished chan struct{}
}

type arrival struct {
	op     *dispatcherv1.Operation
	answer func(*dispatcherv1.Result)
	drain  func()
}

func (d *dispatcher) Exchange(stream grpc.BidiStreamingServer[dispatcherv1.ExchangeRequest, dispatcherv1.ExchangeResponse]) error {
	var mu sync.Mutex
	send := func(m *dispatcherv1.ExchangeResponse) {
		mu.Lock()
		defer mu.Unlock()
		_ = stream.Send(m) // the test breaks streams
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, op := range m.GetOperations() {
			a := arrival{
				op: op,
				answer: func(res *dispatcherv1.Result) {
					res.Id = op.GetId()
					send(&dispatcherv1.ExchangeResponse{Results: []*dispatcherv1.Result{res}})
				},
				drain: func() { send(&dispatcherv1.ExchangeResponse{Draining: true}) },
			}
			if d.auto && op.GetPush() != nil {
				a.answer(pushed(d.addr))
			}
			d.arrived <- a
		}
	}
}

func (d *dispatcher) start() {
	l, err := d.network.Listen(d.t.Context(), d.addr)
	require.NoError(d.t, err)
	d.server = grpc.NewServer()
	d.finished = make(chan struct{})
	dispatcherv1.RegisterDispatcherServiceServer(d.server, d)
	go func() {
		defer close(d.finished)
		_ = d.server.Serve(l) // ends by stop
	}()
}

// stop is a crash: every stream breaks at once.
func (d *dispatcher) stop() {
	d.server.Stop()
	<-d.finished
}

func (d *dispatcher) next() arrival {
	d.t.Helper()
	select {
	case a := <-d.arrived:
		return a
	case <-time.After(5 * time.Second): //nolint:forbidigo // the bound of a test
		d.t.Fatalf("nothing arrives at %s", d.addr)
		return arrival{}
	}
}

func pushed(id string) *dispatcherv1.Result {
	return &dispatcherv1.Result{Result: &dispatcherv1.Result_Push{Push: &queuev1.PushResponse{Results: []*queuev1.PushResult{{MessageId: id}}}}}
}

func popped(lease string) *dispatcherv1.Result {
	return &dispatcherv1.Result{Result: &dispatcherv1.Result_Pop{Pop: &queuev1.PopResponse{Lease: lease, Deliveries: []*queuev1.Delivery{{MessageId: "m"}}}}}
}

func push(queue, key, payload string) *dispatcherv1.Operation {
	return &dispatcherv1.Operation{Tenant: "t", Op: &dispatcherv1.Operation_Push{Push: &queuev1.PushRequest{
		Queue: queue, Items: []*queuev1.PushItem{{Payload: []byte(payload), IdempotencyKey: key}},
	}}}
}

func pop(wait time.Duration) *dispatcherv1.Operation {
	return &dispatcherv1.Operation{Tenant: "t", Op: &dispatcherv1.Operation_Pop{Pop: &queuev1.PopRequest{Queue: "q", Wait: durationpb.New(wait)}}}
}

// bundle is an exchange with two scripted dispatchers, the first of them the own host's.
type bundle struct {
	*engine.Exchange

	own, other *dispatcher
	stop       context.CancelFunc
	ended      chan error
}

func setup(t *testing.T, change ...func(*engine.Config)) *bundle {
	t.Helper()
	cfg := engine.Config{Streams: 2, MaxOps: 1000, MaxBytes: 1 << 20, Patience: 2 * time.Second}
	for _, c := range change {
		c(&cfg)
	}
	network := memnet.New()
	env := run.Env{Log: zap.NewNop(), Traces: noop.NewTracerProvider(), Clock: clock.Real{}, Dial: network.Dial, Listen: network.Listen}
	x, err := engine.New(func(addr string) (*grpc.ClientConn, error) { return grpcclient.Dial(env, addr, "") }, clock.Real{}, zap.NewNop(), prometheus.NewRegistry(), cfg)
	require.NoError(t, err)
	b := &bundle{Exchange: x, ended: make(chan error, 1)}
	for i, d := range []**dispatcher{&b.own, &b.other} {
		*d = &dispatcher{t: t, addr: "mem:d" + strconv.Itoa(i), network: network, arrived: make(chan arrival, 10_000)}
		(*d).start()
		t.Cleanup(func() { (*d).stop() })
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	b.stop = cancel
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		b.ended <- x.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-finished
	})
	x.SetTargets([]engine.Target{{Addr: "mem:d0", Own: true}, {Addr: "mem:d1"}})
	b.awaitUsable(t, 2)
	return b
}

func (b *bundle) awaitUsable(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return b.Usable() == n }, 5*time.Second, time.Millisecond)
}

type outcome struct {
	res *dispatcherv1.Result
	err error
}

// do sends in the background.
func (b *bundle) do(ctx context.Context, op *dispatcherv1.Operation) chan outcome {
	out := make(chan outcome, 1)
	go func() {
		res, err := b.Do(ctx, op)
		out <- outcome{res, err}
	}()
	return out
}

func TestTheOwnHostsDispatcherIsPreferredAndGoneBackTo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.own.auto, b.other.auto = true, true
	where := func() string {
		res, err := b.Do(t.Context(), push("q", "k", "x"))
		require.NoError(t, err)
		return res.GetPush().GetResults()[0].GetMessageId()
	}
	require.Equal(t, "mem:d0", where())

	b.own.stop()
	began := time.Now()
	require.Equal(t, "mem:d1", where())
	require.Less(t, time.Since(began), time.Second)
	b.own.start()
	b.awaitUsable(t, 2)

	require.Equal(t, "mem:d0", where())
}

func TestAPushThatWasOutWhenItsDispatcherDiedIsNotSentAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.do(t.Context(), push("q", "", "x"))
	b.own.next()

	b.own.stop()

	require.ErrorIs(t, (<-got).err, engine.ErrOutcomeUnknown)
	require.Empty(t, b.other.arrived)
	b.own.start()
}

func TestAPushWithAKeyIsSentAgainOnceElsewhere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.do(t.Context(), push("q", "k", "x"))
	b.own.next()
	b.own.stop()

	b.other.next().answer(pushed("second"))

	o := <-got
	require.NoError(t, o.err)
	require.Equal(t, "second", o.res.GetPush().GetResults()[0].GetMessageId())

	got = b.do(t.Context(), push("q", "k", "x"))
	b.other.next()
	b.own.start()
	b.awaitUsable(t, 2)
	b.other.stop()
	b.own.next()
	b.own.stop()
	require.ErrorIs(t, (<-got).err, engine.ErrOutcomeUnknown, "lost twice")
	b.own.start()
	b.other.start()
}

func TestAParkedPopMovesWithTheRestOfItsWait(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.do(t.Context(), pop(time.Minute))
	first := b.own.next().op.GetPop().GetWait().AsDuration()

	b.own.stop()

	moved := b.other.next()
	require.Less(t, moved.op.GetPop().GetWait().AsDuration(), first)
	require.Greater(t, moved.op.GetPop().GetWait().AsDuration(), 50*time.Second)
	moved.answer(popped("l"))
	require.Equal(t, "l", (<-got).res.GetPop().GetLease())
	b.own.start()
}

func TestAPopSentAwayByADrainingDispatcherMoves(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.do(t.Context(), pop(time.Minute))
	parked := b.own.next()
	parked.drain()
	parked.answer(&dispatcherv1.Result{Result: &dispatcherv1.Result_Pop{Pop: &queuev1.PopResponse{Draining: true}}})

	b.other.next().answer(popped("l"))

	require.Equal(t, "l", (<-got).res.GetPop().GetLease())
	next := b.do(t.Context(), push("q", "", "x"))
	b.other.next().answer(pushed("m"))
	require.NoError(t, (<-next).err, "new operations go elsewhere at once")
}

func TestALeavingDispatcherFinishesWhatItHasAndGetsNothingNew(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.do(t.Context(), push("q", "", "x"))
	inFlight := b.own.next()

	b.SetTargets([]engine.Target{{Addr: "mem:d0", Own: true, Leaving: true}, {Addr: "mem:d1"}})
	b.awaitUsable(t, 1)
	next := b.do(t.Context(), push("q", "", "y"))
	b.other.next().answer(pushed("other"))
	require.NoError(t, (<-next).err)
	inFlight.answer(pushed("own"))

	o := <-got
	require.NoError(t, o.err)
	require.Equal(t, "own", o.res.GetPush().GetResults()[0].GetMessageId())
	b.SetTargets([]engine.Target{{Addr: "mem:d0", Own: true}, {Addr: "mem:d1"}})
	b.awaitUsable(t, 2)
}

func TestADispatcherThatIsGoneFromTheSetIsGivenUpAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.do(t.Context(), pop(time.Minute))
	b.own.next() // and never answers: it hangs

	b.SetTargets([]engine.Target{{Addr: "mem:d1"}})

	b.other.next().answer(popped("l"))
	require.Equal(t, "l", (<-got).res.GetPop().GetLease())
}

func TestAnAbandonedPopIsWithdrawnAndWhatItLeasedIsGivenBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	got := b.do(ctx, pop(time.Minute))
	parked := b.own.next()

	cancel()

	require.ErrorIs(t, (<-got).err, context.Canceled)
	require.Equal(t, parked.op.GetId(), b.own.next().op.GetCancel())
	parked.answer(popped("late"))
	release := b.own.next()
	require.Equal(t, "late", release.op.GetRelease().GetLease())
	require.Equal(t, "t", release.op.GetTenant())
	release.answer(&dispatcherv1.Result{Result: &dispatcherv1.Result_Release{Release: &queuev1.ReleaseResponse{Released: 1}}})
}

func TestWithoutADispatcherThereIsAClearErrorInTime(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *engine.Config) { c.Patience = 50 * time.Millisecond })
	b.SetTargets(nil)
	b.awaitUsable(t, 0)

	_, err := b.Do(t.Context(), push("q", "", "x"))

	require.ErrorIs(t, err, engine.ErrNoDispatcher)
	err = b.Control(t.Context(), "t", "q", true, nil)
	require.ErrorIs(t, err, engine.ErrNoDispatcher)
}

func TestADispatcherThatComesInTimeIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.other.auto = true
	b.SetTargets(nil)
	b.awaitUsable(t, 0)
	got := b.do(t.Context(), push("q", "", "x"))

	b.SetTargets([]engine.Target{{Addr: "mem:d1"}})

	require.NoError(t, (<-got).err)
}

func TestWhatIsInFlightIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *engine.Config) { c.MaxOps, c.MaxBytes = 2, 10_000 })
	first, second := b.do(t.Context(), pop(time.Minute)), b.do(t.Context(), pop(time.Minute))
	one, two := b.own.next(), b.own.next()
	_, err := b.Do(t.Context(), pop(time.Minute))
	require.ErrorIs(t, err, engine.ErrOverloaded)

	one.answer(popped("a"))
	two.answer(popped("b"))
	<-first
	<-second

	_, err = b.Do(t.Context(), push("q", "", string(make([]byte, 10_001))))
	require.ErrorIs(t, err, engine.ErrOverloaded)
}

func TestPushesOfAQueueArriveInTheOrderOfTheirSubmission(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *engine.Config) { c.MaxOps = 10_000 })
	b.own.auto = true
	const n = 3000
	var done sync.WaitGroup
	for i := range n {
		done.Add(1)
		b.Go(push("q", "", strconv.Itoa(i)), func(*dispatcherv1.Result, error) { done.Done() })
	}
	done.Wait()
	for i := range n {
		require.Equal(t, strconv.Itoa(i), string(b.own.next().op.GetPush().GetItems()[0].GetPayload()))
	}
}

func TestEveryOperationEndsExactlyOnceWhateverDies(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *engine.Config) { c.MaxOps = 100_000 })
	b.own.auto, b.other.auto = true, true
	var mu sync.Mutex
	ends := map[int]int{}
	var done sync.WaitGroup
	for round := range 10 {
		for i := range 200 {
			done.Add(1)
			b.Go(push("q"+strconv.Itoa(i%7), "k", "x"), func(*dispatcherv1.Result, error) {
				mu.Lock()
				ends[round*200+i]++
				mu.Unlock()
				done.Done()
			})
		}
		d := b.own
		if round%2 == 1 {
			d = b.other
		}
		d.stop()
		d.start()
	}
	done.Wait()
	require.Len(t, ends, 2000)
	for _, n := range ends {
		require.Equal(t, 1, n)
	}
}

func TestStoppingEndsWhatIsInFlight(t *testing.T) {
	t.Parallel()
	b := setup(t)
	got := b.do(t.Context(), push("q", "", "x"))
	b.own.next()

	b.stop()

	require.NoError(t, <-b.ended)
	require.Error(t, (<-got).err)
	_, err := b.Do(t.Context(), push("q", "", "x"))
	require.ErrorIs(t, err, engine.ErrNoDispatcher)
}
