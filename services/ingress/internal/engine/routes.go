package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/maypok86/otter/v2"
	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/tenant"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	"postrider.dev/services/ingress/internal/domain"
)

const (
	maxRoutes     = 65_536          // remembered
	maxWanted     = 4096            // waiting to be read; what finds no room is wanted again by the next operation
	routeBatch    = 500             // in one question
	routeTimeout  = 2 * time.Second // of one question
	routeRetry    = time.Second     // after one that failed
	routeGather   = time.Millisecond
	registryActor = "ingress"
)

// routes remembers which dispatcher each queue is routed to. No operation waits for it: one whose queue is not known goes to the own host's dispatcher, which
// serves it as well, and the route is read meanwhile. A hint makes an entry due for reading and nothing more, so a forged one costs a query, and a lost one
// costs hops until refresh has passed.
type routes struct {
	refresh time.Duration
	clk     clock.Clock
	log     *zap.Logger
	known   *otter.Cache[laneKey, knownRoute]
	wake    chan struct{} // holds one token while something is wanted

	mu     sync.Mutex // guards wanted
	wanted map[laneKey]struct{}
}

// knownRoute is what was read: the dispatcher's address, empty if the queue is routed to none.
type knownRoute struct {
	addr string
	due  time.Time // when it must be read again
}

func newRoutes(refresh time.Duration, clk clock.Clock, log *zap.Logger) (*routes, error) {
	known, err := otter.New(&otter.Options[laneKey, knownRoute]{MaximumSize: maxRoutes})
	if err != nil {
		return nil, fmt.Errorf("route cache: %w", err)
	}
	return &routes{refresh: refresh, clk: clk, log: log, known: known, wake: make(chan struct{}, 1), wanted: map[laneKey]struct{}{}}, nil
}

// of returns the address of the dispatcher that a queue is routed to, as far as it is known; empty if not.
func (r *routes) of(k laneKey) string {
	known, ok := r.known.GetIfPresent(k)
	if !ok || r.clk.Now().After(known.due) {
		r.want(k)
	}
	return known.addr
}

// changed makes the entry be read again if it is there.
func (r *routes) changed(k laneKey) {
	if _, ok := r.known.GetIfPresent(k); ok {
		r.want(k)
	}
}

// allChanged makes every entry be read again when it is needed next.
func (r *routes) allChanged() {
	for k, known := range r.known.All() {
		r.known.Set(k, knownRoute{addr: known.addr})
	}
}

func (r *routes) want(k laneKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.wanted) < maxWanted {
		r.wanted[k] = struct{}{}
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// take returns some of what is wanted, of one tenant. What changes from now on is wanted again.
func (r *routes) take() (t string, queues []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k := range r.wanted {
		if t == "" {
			t = k.tenant
		}
		if k.tenant != t || len(queues) == routeBatch {
			continue
		}
		delete(r.wanted, k)
		queues = append(queues, k.queue)
		known, _ := r.known.GetIfPresent(k)
		r.known.Set(k, knownRoute{addr: known.addr, due: r.clk.Now().Add(r.refresh)}) // there, so that a hint of now is not passed over
	}
	return t, queues
}

// run reads what is wanted until ctx ends.
func (r *routes) run(ctx context.Context, x *Exchange) {
	for {
		select {
		case <-r.wake:
		case <-ctx.Done():
			return
		}
		if r.clk.Sleep(ctx, routeGather) != nil {
			return
		}
		for t, queues := r.take(); len(queues) > 0 && ctx.Err() == nil; t, queues = r.take() {
			if err := r.read(ctx, x, t, queues); err != nil && ctx.Err() == nil {
				r.log.Warn("routes cannot be read", zap.Error(err))
			}
		}
	}
}

// read asks for the routes of queues of one tenant. If that fails they stay as they are for a moment.
func (r *routes) read(ctx context.Context, x *Exchange, t string, queues []string) error {
	ctx, cancel := context.WithTimeout(tenant.NewContext(ctx, tenant.Caller{Tenant: tenant.ID(t), Actor: registryActor, Role: tenant.Read}), routeTimeout)
	defer cancel()
	var resp *dispatcherv1.FindRoutesResponse
	err := x.Ask(ctx, t, queues[0], func(ctx context.Context, d dispatcherv1.DispatcherServiceClient) (err error) {
		resp, err = d.FindRoutes(ctx, &dispatcherv1.FindRoutesRequest{Queues: queues})
		return err
	})
	now := r.clk.Now()
	if err != nil {
		for _, q := range queues {
			known, _ := r.known.GetIfPresent(laneKey{t, q})
			r.known.Set(laneKey{t, q}, knownRoute{addr: known.addr, due: now.Add(min(routeRetry, r.refresh))})
		}
		return err
	}
	found := make(map[string]string, len(queues))
	for _, f := range resp.GetRoutes() {
		found[f.GetQueue()] = f.GetAddress()
	}
	for _, q := range queues {
		r.known.Set(laneKey{t, q}, knownRoute{addr: found[q], due: now.Add(r.refresh)})
	}
	return nil
}

// RouteChanged is told that the registry's entry with this key changed, as hints name it (the tenant, a slash, the queue); an empty key means any.
func (x *Exchange) RouteChanged(key string) {
	if t, queue, ok := strings.Cut(key, "/"); ok { // no tenant has a slash
		x.routes.changed(laneKey{t, queue})
		return
	}
	x.routes.allChanged()
}

// route puts the dispatcher that the queue is routed to before all others, if it can be sent to.
func (x *Exchange) route(k laneKey, peers []*peer) domain.Dispatch {
	if len(peers) < 2 {
		return domain.Unknown // there is no choice, and nothing to ask
	}
	addr := x.routes.of(k)
	i := slices.IndexFunc(peers, func(p *peer) bool { return p.target.Addr == addr })
	if i < 0 {
		return domain.Unknown
	}
	first := peers[i]
	copy(peers[1:i+1], peers[:i])
	peers[0] = first
	if first.target.Own {
		return domain.Local
	}
	return domain.Remote
}
