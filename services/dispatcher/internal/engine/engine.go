package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/run"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/engine/segcache"
	"postrider.dev/services/dispatcher/internal/spool"
	"postrider.dev/services/dispatcher/internal/store"
)

// lanes is how many commits of one kind are in flight at once. More would only split the batches.
const lanes = 2

// Hinter tells other dispatchers. Its methods MUST NOT block.
type Hinter interface {
	MessagesAvailable(t tenant.ID, queue string)
	QueueChanged(t tenant.ID, queue string, deleted bool)
}

// Parts are what an Engine stands on.
type Parts struct {
	Store   *store.Store
	Control *store.Control
	Encoder *segment.Encoder
	Decoder *segment.Decoder
	Hints   Hinter
	Clock   clock.Clock
	Log     *zap.Logger
	Metrics prometheus.Registerer

	// Spool takes pushes while the database is away or in maintenance, and Backlog is what was found in it. Run drives the spool. A nil Spool: such pushes
	// fail.
	Spool   *spool.Log
	Backlog *Backlog
	// Maintenance says whether that mode is on, and whether that is known yet. nil: never.
	Maintenance func() (on, known bool)
}

// Engine is the live part of a dispatcher: what waits, what is in flight, and what is remembered. Run drives it; the verbs may be called from anywhere
// while Run runs. It holds no truth: everything may be lost at any moment.
type Engine struct {
	cfg      Config
	db       *store.Store
	control  *store.Control
	catalog  *catalog.Catalog
	rates    *catalog.Rates
	segments *segcache.Cache
	encoder  *segment.Encoder
	decoder  *segment.Decoder
	hints    Hinter
	clk      clock.Clock
	rand     clock.Rand
	log      *zap.Logger
	metrics  *metrics
	dbtime   *dbClock
	poller   *poller
	alarm    *alarm
	views    *views
	depths   *depths
	identity identity
	due      *dueWatch
	spool    *spooler // nil: none

	transactor *transactor

	maintenance func() (on, known bool)

	holderSuffix string // tells this process's leases from those of others

	flushLanes [lanes]*flushLane
	workLanes  [lanes]*workLane
	pushBytes  *budget
	requests   *budget
	pops       *budget
	slots      semaphore // reads of views and changes under locks, beside the lanes
	readers    semaphore // reads of bodies
	backlog    semaphore // who reads the log far behind its end

	base     context.Context //nolint:containedctx // of what outlives its caller; ends when Run ends
	end      context.CancelFunc
	draining context.Context //nolint:containedctx // ends when parked pops are to be sent away
	drain    context.CancelFunc
	leaving  atomic.Bool    // Run's context has ended: nothing is tried again
	stopping atomic.Bool    // and everything in flight is answered: nothing new is taken
	running  sync.WaitGroup // goroutines of background
	closing  sync.RWMutex   // held shared while background adds to running

	troubled atomic.Int64 // when a warning of the database was logged last

	firstServed chan struct{} // holds one token while FirstSubscribers has something to say

	arrivals  arrivals
	sightings sightings
	keyAlarm  keyAlarm

	mu      sync.Mutex // guards the next six
	ended   bool       // nobody works on group-shards any more
	tails   map[*Tail]struct{}
	groups  map[int64]*group
	byShard map[window.GroupShardID]*gshard
	shards  map[message.ShardID]*shard
	heads   map[message.ShardID]message.Offset
}

// New returns an Engine that does nothing until Run runs. ctx is where what outlives its caller gets its values from.
func New(ctx context.Context, parts Parts, cfg Config) (*Engine, error) {
	names := catalog.Defaults()
	names.LoadTimeout = cfg.Patience // a storm of new names waits its turn
	cat, err := catalog.New(parts.Control, parts.Clock, names)
	if err != nil {
		return nil, err
	}
	m := newMetrics(parts.Metrics)
	e := &Engine{
		cfg: cfg, db: parts.Store, control: parts.Control, catalog: cat, rates: catalog.NewRates(parts.Clock),
		segments: segcache.New(cfg.DirectoryBytes, cfg.BodyBytes), encoder: parts.Encoder, decoder: parts.Decoder,
		hints: parts.Hints, clk: parts.Clock, rand: clock.Random{}, log: parts.Log, metrics: m,
		dbtime: &dbClock{clk: parts.Clock}, holderSuffix: "@" + uuid.NewString()[:8],
		pushBytes: newBudget("bytes wait for a commit", cfg.QueuedBytes, m.queuedBytes),
		requests:  newBudget("requests wait for a commit", int64(cfg.QueuedRequests), m.queued),
		pops:      newBudget("pops wait for messages", int64(cfg.ParkedPops), m.popsOpen),
		slots:     newSemaphore(2), readers: newSemaphore(2), backlog: newSemaphore(1), tails: map[*Tail]struct{}{}, firstServed: make(chan struct{}, 1),
		groups: map[int64]*group{}, byShard: map[window.GroupShardID]*gshard{}, shards: map[message.ShardID]*shard{},
		sightings: sightings{shards: map[message.ShardID]*sighted{}},
		heads:     map[message.ShardID]message.Offset{}, arrivals: arrivals{waiting: map[queueName][]func(*catalog.Queue, error){}},
	}
	e.identity.connected.Store(1)
	e.due = newDueWatch()
	e.transactor = newTransactor()
	e.base, e.end = context.WithCancel(context.WithoutCancel(ctx))
	e.draining, e.drain = context.WithCancel(e.base)
	e.poller, e.alarm, e.views, e.depths = newPoller(e), newAlarm(e), newViews(e), newDepths(e)
	for i := range lanes {
		e.flushLanes[i], e.workLanes[i] = newFlushLane(e), newWorkLane(e)
	}
	e.maintenance = parts.Maintenance
	if e.maintenance == nil {
		e.maintenance = func() (on, known bool) { return false, true }
	}
	e.spool = newSpooler(e, parts)
	m.watch(parts.Metrics, e)
	return e, nil
}

// Run commits, polls and wakes until ctx ends; then it finishes what is in flight and refuses what still waits.
func (e *Engine) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { e.leaving.Store(true) })
	defer stop()
	var parts []run.Part
	for i := range lanes {
		parts = append(parts,
			run.Part{Name: "flush lane", Run: e.flushLanes[i].run},
			run.Part{Name: "work lane", Run: e.workLanes[i].run})
	}
	parts = append(parts,
		run.Part{Name: "poller", Run: e.poller.run},
		run.Part{Name: "alarm", Run: e.alarm.run},
		run.Part{Name: "views", Run: e.views.run},
		run.Part{Name: "depths", Run: e.depths.run},
		run.Part{Name: "transactions", Run: e.transactor.run})
	if e.spool != nil {
		d := &drainer{spooler: e.spool, lane: newFlushLane(e), held: map[queueName]*heldRecords{}}
		parts = append(parts, run.Part{Name: "drainer", Run: d.run})
		e.running.Go(func() { _ = e.spool.log.Run(e.base) }) // it never fails, and writes what the lanes still give it
	}
	err := run.All(ctx, parts...)
	e.Drain()
	e.stopping.Store(true)
	e.closing.Lock() // from here on background starts nothing
	e.end()
	e.closing.Unlock()
	e.running.Wait()
	e.refuseAll()
	return err
}

// refuseAll answers what nobody will work on any more.
func (e *Engine) refuseAll() {
	e.mu.Lock()
	e.ended = true
	groups := make([]*group, 0, len(e.groups))
	for _, g := range e.groups {
		groups = append(groups, g)
	}
	e.mu.Unlock()
	for _, g := range groups {
		for _, s := range g.shards {
			s.refuse()
		}
		g.endAll(nil)
	}
}

// Drain sends parked pops away and lets no other pop wait. Everything else goes on.
func (e *Engine) Drain() { e.drain() }

// Catalog is the engine's cache of queues and groups, for the control verbs.
func (e *Engine) Catalog() *catalog.Catalog { return e.catalog }

// Rates is what this dispatcher appends to each queue.
func (e *Engine) Rates() *catalog.Rates { return e.rates }

// background runs fn in a goroutine that Run waits for. After the end of Run it does nothing and returns false.
func (e *Engine) background(fn func()) bool {
	e.closing.RLock()
	defer e.closing.RUnlock()
	if e.base.Err() != nil {
		return false
	}
	e.running.Go(fn)
	return true
}

func (e *Engine) flushLane(queueID int64) *flushLane { return e.flushLanes[queueID%lanes] }

// draw is the jitter of backoffs.
func (e *Engine) draw() float64 { return rand.Float64() } //nolint:gosec // spreads load, hides nothing

// troubleEvery is how often one warning about the database is logged, however often it fails.
const troubleEvery = time.Second

// trouble logs a failure of the database that is dealt with, now and then.
func (e *Engine) trouble(what string, err error) {
	now := e.clk.Now().UnixNano()
	last := e.troubled.Load()
	if pg.IsConnectionLost(err) || pg.IsOutcomeUnknown(err) {
		e.Reconnected() // whoever answers next may be another one
	}
	if errors.Is(err, context.Canceled) || now-last < int64(troubleEvery) || !e.troubled.CompareAndSwap(last, now) {
		return
	}
	e.log.Warn("database trouble", zap.String("what", what), zap.Error(err))
}

// dbError tells failures of the database from answers of the domain.
func (e *Engine) dbError(err error) error {
	if retryable(err) || pg.IsOutcomeUnknown(err) || pg.IsConnectionLost(err) {
		return &UnavailableError{Err: err}
	}
	return err
}

// semaphore bounds what happens at once.
type semaphore chan struct{}

func newSemaphore(n int) semaphore { return make(semaphore, n) }

// enter returns false if ctx ends first.
func (s semaphore) enter(ctx context.Context) bool {
	select {
	case s <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (s semaphore) leave() { <-s }
