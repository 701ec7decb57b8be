package tail

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/tenant"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	"postrider.dev/services/ingress/internal/domain"
)

// Dispatchers leads to those who read the log. Calls are made for the tenant.Caller of ctx.
type Dispatchers interface {
	// Ask calls fn with the best dispatcher, and with the next while one cannot be reached. fn MAY be called several times.
	Ask(ctx context.Context, tenant, queue string, fn func(context.Context, dispatcherv1.DispatcherServiceClient) error) error
	// Attach calls fn once, with the best dispatcher and a context that ends when that cannot be used any more.
	Attach(ctx context.Context, tenant, queue string, fn func(context.Context, dispatcherv1.DispatcherServiceClient) error) error
}

// Config bounds what subscriptions take.
type Config struct {
	// BufferMessages and BufferBytes are how far a subscriber may be behind the newest message before it has to read the log by itself.
	BufferMessages, BufferBytes int64
	// MaxSubscriptions bounds those open on this node.
	MaxSubscriptions int64
	// Heartbeat is the longest time without an event.
	Heartbeat time.Duration
	// SlowAfter is how long a send must have been stuck for its subscriber to be called slow.
	SlowAfter time.Duration
}

// Defaults returns the bounds of DESIGN 16.
func Defaults() Config {
	return Config{BufferMessages: 1000, BufferBytes: 4 << 20, MaxSubscriptions: 10_000, Heartbeat: 15 * time.Second, SlowAfter: time.Second}
}

var (
	// ErrOverloaded says that this node has as many subscriptions as it may.
	ErrOverloaded = errors.New("too many subscriptions")
	// ErrStopped says that the node is going away.
	ErrStopped = errors.New("subscriptions have ended")
	// ErrResumeGone says that a token is of a queue that is not there any more, or lies beyond its log.
	ErrResumeGone = errors.New("nothing to resume")
)

// OffsetsError says that the offsets given do not fit the queue.
type OffsetsError struct{ Detail string }

func (e *OffsetsError) Error() string { return e.Detail }

// Hub holds the tails of a node and its subscriptions. Run drives it.
type Hub struct {
	from    Dispatchers
	cfg     Config
	clk     clock.Clock
	log     *zap.Logger
	metrics *metrics

	draining <-chan struct{}
	mu       sync.Mutex      // guards the rest
	base     context.Context //nolint:containedctx // Run's, for tails, which outlive who asked for them
	stopped  bool
	tails    map[key]*tail
	open     int64
	running  sync.WaitGroup
}

type key struct {
	tenant tenant.ID
	queue  string
}

// NewHub returns a Hub without subscriptions. Once draining is closed, subscriptions are told to go elsewhere.
func NewHub(from Dispatchers, draining <-chan struct{}, clk clock.Clock, log *zap.Logger, reg prometheus.Registerer, cfg Config) (*Hub, error) {
	m, err := newMetrics(reg)
	if err != nil {
		return nil, err
	}
	return &Hub{from: from, cfg: cfg, clk: clk, log: log, metrics: m, draining: draining, tails: map[key]*tail{}}, nil
}

// Run lets tails live until ctx ends.
func (h *Hub) Run(ctx context.Context) error {
	h.mu.Lock()
	h.base = ctx
	h.mu.Unlock()
	<-ctx.Done()
	h.mu.Lock()
	h.stopped = true
	h.mu.Unlock()
	h.running.Wait()
	return nil
}

// Go runs fn in a goroutine that Run waits for; false if Run does not run.
func (h *Hub) Go(fn func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.base == nil || h.stopped {
		return false
	}
	h.running.Go(fn)
	return true
}

// Wish is what a subscriber asks for.
type Wish struct {
	Queue    string
	Position domain.Position
	Filter   domain.Filter
	Create   bool // make the queue if there is none
}

// Subscribe begins a subscription for the caller, whose tenant's queue it is. It MUST be closed.
func (h *Hub) Subscribe(ctx context.Context, caller tenant.Caller, w Wish) (*Subscription, error) {
	if err := h.enter(); err != nil {
		return nil, err
	}
	s, err := h.subscribe(tenant.NewContext(ctx, caller), caller, w)
	if err != nil {
		h.leave()
		return nil, err
	}
	return s, nil
}

func (h *Hub) subscribe(ctx context.Context, caller tenant.Caller, w Wish) (*Subscription, error) {
	for {
		log, err := h.locate(ctx, caller, w)
		if err != nil {
			return nil, err
		}
		at, err := place(log, w.Position)
		if err != nil {
			return nil, err
		}
		s := &Subscription{
			hub: h, ctx: tenant.NewContext(context.WithoutCancel(ctx), caller), at: at, filter: w.Filter, timer: h.clk.NewTimer(h.cfg.Heartbeat), handed: h.clk.Now(),
		}
		for _, b := range log.GetShards() {
			s.floor = append(s.floor, b.GetHead())
		}
		t, err := h.join(caller, w.Queue, log)
		if err != nil {
			s.timer.Stop()
			return nil, err
		}
		if t != nil {
			s.tail = t
			return s, nil
		}
		s.timer.Stop() // the queue was deleted and made again meanwhile: look again
	}
}

func (h *Hub) locate(ctx context.Context, caller tenant.Caller, w Wish) (log *dispatcherv1.LocateLogResponse, err error) {
	err = h.from.Ask(ctx, string(caller.Tenant), w.Queue, func(ctx context.Context, d dispatcherv1.DispatcherServiceClient) (err error) {
		log, err = d.LocateLog(ctx, &dispatcherv1.LocateLogRequest{
			Queue: w.Queue, From: w.Position.Named, Create: w.Create && w.Position.Queue == 0,
		})
		return err
	})
	return log, err
}

// place returns where in the log a subscription begins.
func place(log *dispatcherv1.LocateLogResponse, p domain.Position) ([]int64, error) {
	shards := log.GetShards()
	if p.Named != "" {
		at := make([]int64, len(shards))
		for i, b := range shards {
			at[i] = b.GetStart()
		}
		return at, nil
	}
	resumes := p.Queue != 0
	switch {
	case resumes && p.Queue != log.GetQueueId():
		return nil, fmt.Errorf("%w: the queue of the token was deleted", ErrResumeGone)
	case resumes && len(p.Offsets) != len(shards):
		return nil, fmt.Errorf("%w: the queue of the token had another log", ErrResumeGone)
	case len(p.Offsets) != len(shards):
		return nil, &OffsetsError{fmt.Sprintf("the queue has %d shards, and %d offsets are given", len(shards), len(p.Offsets))}
	}
	for i, b := range shards {
		switch {
		case p.Offsets[i] <= b.GetHead():
		case resumes:
			return nil, fmt.Errorf("%w: the log ends before the token", ErrResumeGone)
		default:
			return nil, &OffsetsError{fmt.Sprintf("offset %d of shard %d is beyond the end of its log, %d", p.Offsets[i], i, b.GetHead())}
		}
	}
	return append([]int64(nil), p.Offsets...), nil
}

// join returns the tail of the queue, begun if need be; nil if a newer queue has the name now.
func (h *Hub) join(caller tenant.Caller, queue string, log *dispatcherv1.LocateLogResponse) (*tail, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.base == nil || h.stopped {
		return nil, ErrStopped
	}
	k := key{caller.Tenant, queue}
	t := h.tails[k]
	switch {
	case t != nil && t.queue == log.GetQueueId() && t.enter():
		return t, nil
	case t != nil && t.queue > log.GetQueueId():
		return nil, nil //nolint:nilnil // neither a tail nor a failure: look again
	}
	t = newTail(h, k, caller, log)
	h.tails[k] = t
	h.running.Go(func() { t.run(h.base) })
	return t, nil
}

// forget takes a tail that has ended out of the table.
func (h *Hub) forget(t *tail) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tails[t.key] == t {
		delete(h.tails, t.key)
	}
}

func (h *Hub) enter() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open >= h.cfg.MaxSubscriptions {
		return ErrOverloaded
	}
	h.open++
	h.metrics.open.Inc()
	return nil
}

func (h *Hub) leave() {
	h.mu.Lock()
	h.open--
	h.mu.Unlock()
	h.metrics.open.Dec()
}
