package engine

import (
	"cmp"
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"postrider.dev/pkg/clock"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

// Config bounds the exchange.
type Config struct {
	Streams  int           // to each dispatcher
	MaxOps   int64         // in flight, parked pops among them
	MaxBytes int64         // of requests in flight
	Patience time.Duration // how long an operation waits for a dispatcher to be up

	RouteRefresh time.Duration // how long the route of a queue is believed that no hint says has changed

	HungAfter time.Duration // how long a dispatcher may leave the question open whether it lives; 0: 5 s
}

const defaultHungAfter = 5 * time.Second

// Exchange sends operations to dispatchers. Use New; Run drives it.
type Exchange struct {
	cfg     Config
	dial    func(addr string) (*grpc.ClientConn, error)
	clk     clock.Clock
	log     *zap.Logger
	metrics *metrics
	seed    maphash.Seed
	routes  *routes
	targets chan []Target // the newest set that Run has not seen yet

	ops, bytes atomic.Int64

	lanesMu sync.Mutex // guards lanes and their content; taken before mu and before a stream's
	lanes   map[laneKey]*lane

	mu       sync.Mutex // guards the rest
	peers    []*peer
	change   chan struct{}   // closed and replaced when a peer goes up, down or draining
	base     context.Context //nolint:containedctx // Run's, for what outlives its caller
	stopped  bool
	settling sync.WaitGroup // goroutines of background
}

// New returns an exchange without dispatchers.
func New(dial func(addr string) (*grpc.ClientConn, error), clk clock.Clock, log *zap.Logger, reg prometheus.Registerer, cfg Config) (*Exchange, error) {
	cfg.HungAfter = cmp.Or(cfg.HungAfter, defaultHungAfter)
	m, err := newMetrics(reg)
	if err != nil {
		return nil, err
	}
	known, err := newRoutes(cfg.RouteRefresh, clk, log)
	if err != nil {
		return nil, err
	}
	return &Exchange{
		cfg: cfg, routes: known, dial: dial, clk: clk, log: log, metrics: m, seed: maphash.MakeSeed(),
		lanes: map[laneKey]*lane{}, targets: make(chan []Target, 1), change: make(chan struct{}),
	}, nil
}

// SetTargets replaces the set of dispatchers. What a removed one carried ends or moves: one that is alive and going should be Leaving first.
func (x *Exchange) SetTargets(targets []Target) {
	for {
		select {
		case x.targets <- targets:
			return
		default:
		}
		select {
		case <-x.targets: // an older set that nobody has looked at
		default:
		}
	}
}

// settleTime bounds how long Run waits, at its end, for withdrawn pops to be answered and given back.
const settleTime = 2 * time.Second

// Run keeps the streams until ctx ends; then it waits a moment for what is in flight and ends the rest with ErrStopped.
func (x *Exchange) Run(ctx context.Context) error {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	x.mu.Lock()
	x.base = work
	x.mu.Unlock()
	x.background(func(ctx context.Context) { x.routes.run(ctx, x) })
	for {
		select {
		case targets := <-x.targets:
			if err := x.apply(work, targets); err != nil {
				return err
			}
		case <-ctx.Done():
			x.settle()
			x.stop(cancel)
			return nil
		}
	}
}

// apply makes the peers what targets says.
func (x *Exchange) apply(ctx context.Context, targets []Target) error {
	x.mu.Lock()
	old := slices.Clone(x.peers)
	x.mu.Unlock()
	var peers, gone []*peer
	for _, p := range old {
		i := slices.IndexFunc(targets, func(t Target) bool { return t.Addr == p.target.Addr && t.Own == p.target.Own })
		if i < 0 {
			gone = append(gone, p)
			continue
		}
		p.leaving.Store(targets[i].Leaving)
		peers = append(peers, p)
	}
	for _, t := range targets {
		if t.Leaving || slices.ContainsFunc(peers, func(p *peer) bool { return p.target.Addr == t.Addr }) {
			continue
		}
		p, err := x.newPeer(ctx, t)
		if err != nil {
			return err
		}
		peers = append(peers, p)
	}
	x.mu.Lock()
	x.peers = peers
	x.mu.Unlock()
	for _, p := range gone {
		p.stop()
	}
	x.changed()
	return nil
}

// settle waits until nothing is in flight, for at most settleTime.
func (x *Exchange) settle() {
	deadline := x.clk.NewTimer(settleTime)
	defer deadline.Stop()
	tick := x.clk.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for x.ops.Load() > 0 {
		select {
		case <-tick.C():
		case <-deadline.C():
			return
		}
	}
}

func (x *Exchange) stop(cancel context.CancelFunc) {
	x.mu.Lock()
	x.stopped = true
	peers := x.peers
	x.peers = nil
	x.mu.Unlock()
	cancel()
	for _, p := range peers {
		p.stop()
	}
	x.settling.Wait()
}

func (x *Exchange) stopping() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.stopped
}

// background runs fn in a goroutine that Run waits for; false if Run does not run.
//
//nolint:contextcheck,nolintlint // what runs there outlives whoever asked for it; it has the context of Run. nolintlint does not see contextcheck obey.
func (x *Exchange) background(fn func(context.Context)) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.base == nil || x.stopped {
		return false
	}
	ctx := x.base
	x.settling.Go(func() { fn(ctx) })
	return true
}

// changes returns a channel that is closed at the next change of what is usable. Get it before looking.
func (x *Exchange) changes() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.change
}

func (x *Exchange) changed() {
	x.mu.Lock()
	close(x.change)
	x.change = make(chan struct{})
	up := 0
	for _, p := range x.peers {
		if p.usable() {
			up++
		}
	}
	x.mu.Unlock()
	x.metrics.up.Set(float64(up))
}

// Usable reports how many dispatchers can be sent to now.
func (x *Exchange) Usable() int { return len(x.candidates("", "")) }

// candidates returns the usable peers, best first: the own host's, then by the queue's affinity.
func (x *Exchange) candidates(tenant, queue string) []*peer {
	x.mu.Lock()
	peers := make([]*peer, 0, len(x.peers))
	for _, p := range x.peers {
		if p.usable() {
			peers = append(peers, p)
		}
	}
	x.mu.Unlock()
	if len(peers) < 2 {
		return peers
	}
	slices.SortFunc(peers, func(a, b *peer) int {
		if a.target.Own != b.target.Own {
			if a.target.Own {
				return -1
			}
			return 1
		}
		if x.hash(tenant, queue, a.target.Addr) < x.hash(tenant, queue, b.target.Addr) {
			return -1
		}
		return 1
	})
	return peers
}

// submit gives the task to the best peer that takes it.
func (x *Exchange) submit(t *task) bool {
	var taken bool
	if t.op.GetPush() != nil {
		taken = x.submitPush(t)
	} else {
		taken = slices.ContainsFunc(x.order(t), func(p *peer) bool { return p.submit(t) != nil })
	}
	if taken {
		t.withdrawIfAbandoned() // its caller went between the look and the submission
	}
	return taken
}

// order returns the peers that the task may be given to, best first; the one it was lost on comes last. A push goes to the own host's dispatcher, what pops
// and settles to the one the queue is routed to.
func (x *Exchange) order(t *task) []*peer {
	key := laneKey{t.op.GetTenant(), queueOf(t.op)}
	peers := x.candidates(key.tenant, key.queue)
	if t.op.GetPush() == nil {
		x.metrics.routed[x.route(key, peers)].Inc()
	}
	if t.avoid != nil {
		slices.SortStableFunc(peers, func(a, b *peer) int {
			switch {
			case a == t.avoid && b != t.avoid:
				return 1
			case b == t.avoid && a != t.avoid:
				return -1
			}
			return 0
		})
	}
	return peers
}

// Go sends op and calls done, exactly once, from a goroutine that MUST NOT be held up. Calls that follow one another for one queue are sent in order.
// The exchange owns op until done is called. The returned function abandons the operation: done is not called then, and what it leases is given back.
func (x *Exchange) Go(op *dispatcherv1.Operation, done func(*dispatcherv1.Result, error)) (abandon func()) {
	size := int64(proto.Size(op))
	if size > maxOpBytes {
		done(nil, &TooLargeError{Size: size, Limit: maxOpBytes})
		return func() {}
	}
	t := &task{x: x, op: op, bytes: size, began: x.clk.Now(), wait: op.GetPop().GetWait().AsDuration(), done: done}
	if !x.enter(t) {
		done(nil, ErrOverloaded)
		return func() {}
	}
	if !x.submit(t) {
		t.placeSoon()
	}
	return t.abandon
}

// Do sends op and waits. When ctx ends first it returns the cause, and op is withdrawn: a pop leases nothing then, a push may have happened.
func (x *Exchange) Do(ctx context.Context, op *dispatcherv1.Operation) (*dispatcherv1.Result, error) {
	type outcome struct {
		res *dispatcherv1.Result
		err error
	}
	ended := make(chan outcome, 1)
	abandon := x.Go(op, func(res *dispatcherv1.Result, err error) { ended <- outcome{res, err} })
	select {
	case o := <-ended:
		return o.res, o.err
	case <-ctx.Done():
	}
	abandon()
	select {
	case o := <-ended: // it ended before it was abandoned
		return o.res, o.err
	default:
		return nil, context.Cause(ctx)
	}
}

func (x *Exchange) enter(t *task) bool {
	ops, bytes := x.ops.Add(1), x.bytes.Add(t.bytes)
	x.metrics.inFlight.Inc()
	if ops <= x.cfg.MaxOps && bytes <= x.cfg.MaxBytes {
		return true
	}
	x.leave(t)
	return false
}

func (x *Exchange) leave(t *task) {
	x.ops.Add(-1)
	x.bytes.Add(-t.bytes)
	x.metrics.inFlight.Dec()
}

// giveBack releases what an abandoned pop leased.
func (x *Exchange) giveBack(op *dispatcherv1.Operation, res *dispatcherv1.Result) {
	if lease := res.GetPop().GetLease(); lease != "" {
		x.Release(op.GetTenant(), op.GetActor(), op.GetPop().GetQueue(), lease)
	}
}

// Release gives a lease back, uncharged, without waiting: its messages could not be handed to the client. If it fails the lease expires.
func (x *Exchange) Release(tenant, actor, queue, lease string) {
	x.metrics.givenBack.Inc()
	x.Go(&dispatcherv1.Operation{Tenant: tenant, Actor: actor, Op: &dispatcherv1.Operation_Release{
		Release: &queuev1.ReleaseRequest{Queue: queue, Lease: lease},
	}}, func(*dispatcherv1.Result, error) {})
}

func queueOf(op *dispatcherv1.Operation) string {
	switch {
	case op.GetPush() != nil:
		return op.GetPush().GetQueue()
	case op.GetPop() != nil:
		return op.GetPop().GetQueue()
	case op.GetAck() != nil:
		return op.GetAck().GetQueue()
	case op.GetRenew() != nil:
		return op.GetRenew().GetQueue()
	}
	return op.GetRelease().GetQueue()
}
