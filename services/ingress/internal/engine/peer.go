package engine

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"postrider.dev/pkg/obs"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
)

const (
	retryMin = 20 * time.Millisecond
	retryMax = 500 * time.Millisecond
	settled  = time.Second // a stream that lived this long starts its backoff anew
)

// Target is a dispatcher that may be sent to.
type Target struct {
	Addr string
	Own  bool // of this host
	// Leaving dispatchers get nothing new; what they have is waited for.
	Leaving bool
}

// peer is one dispatcher: a connection and its streams.
type peer struct {
	x       *Exchange
	target  Target
	conn    *grpc.ClientConn
	client  dispatcherv1.DispatcherServiceClient
	control queuev1.QueueServiceClient
	health  healthpb.HealthClient
	streams []*stream
	cancel  context.CancelFunc
	ended   chan struct{}

	up       atomic.Int32 // streams that are up
	draining atomic.Bool  // the dispatcher itself says so
	leaving  atomic.Bool  // the set of targets says so
	next     atomic.Uint32
}

func (x *Exchange) newPeer(ctx context.Context, t Target) (*peer, error) {
	conn, err := x.dial(t.Addr)
	if err != nil {
		return nil, err
	}
	p := &peer{
		x: x, target: t, conn: conn, client: dispatcherv1.NewDispatcherServiceClient(conn),
		control: queuev1.NewQueueServiceClient(conn), health: healthpb.NewHealthClient(conn), ended: make(chan struct{}),
	}
	for range x.cfg.Streams {
		p.streams = append(p.streams, newStream(p))
	}
	ctx, p.cancel = context.WithCancel(ctx)
	go p.run(ctx) // stopped and awaited by stop
	return p, nil
}

// run keeps all streams open until ctx ends, except while the dispatcher hangs.
func (p *peer) run(ctx context.Context) {
	defer close(p.ended)
	for ctx.Err() == nil {
		p.live(ctx)
		if ctx.Err() == nil {
			p.x.log.Warn("dispatcher hangs: it is given up until it answers", obs.Addr(p.target.Addr))
			p.untilAnswered(ctx)
		}
	}
}

// live keeps all streams open until the dispatcher hangs or ctx ends. What they carried has ended or moved when it returns.
func (p *peer) live(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, s := range p.streams {
		wg.Go(func() { p.keep(ctx, s) })
	}
	p.untilHung(ctx)
	cancel()
	wg.Wait()
}

func (p *peer) keep(ctx context.Context, s *stream) {
	pause := retryMin
	for ctx.Err() == nil {
		began := p.x.clk.Now()
		err := s.once(ctx)
		if ctx.Err() != nil {
			return
		}
		if p.x.clk.Since(began) > settled {
			pause = retryMin
		}
		p.x.log.Warn("exchange stream ended", obs.Addr(p.target.Addr), zap.Error(err))
		if p.x.clk.Sleep(ctx, pause/2+rand.N(pause)) != nil { //nolint:gosec // G404: jitter needs spread, not secrecy.
			return
		}
		pause = min(2*pause, retryMax)
		p.conn.ResetConnectBackoff() // our own backoff decides
	}
}

// stop ends the streams, which ends or moves what they carry, and closes the connection.
func (p *peer) stop() {
	p.cancel()
	<-p.ended
	_ = p.conn.Close() // nothing uses it any more
}

func (p *peer) raised() {
	p.up.Add(1)
	p.draining.Store(false) // a new stream is a new process, or one that changed its mind
	p.x.changed()
}

func (p *peer) lowered() {
	p.up.Add(-1)
	p.x.changed()
}

func (p *peer) drain() {
	if !p.draining.Swap(true) {
		p.x.log.Info("dispatcher drains", obs.Addr(p.target.Addr))
		p.x.changed()
	}
}

func (p *peer) usable() bool { return p.up.Load() > 0 && !p.draining.Load() && !p.leaving.Load() }

// submit gives the task to one of the streams and returns it, nil if none is up. Pushes of one queue share a stream, so that they stay in order.
func (p *peer) submit(t *task) *stream {
	first := int(p.next.Add(1))
	if push := t.op.GetPush(); push != nil {
		first = int(p.x.hash(t.op.GetTenant(), push.GetQueue(), "") >> 33)
	}
	for i := range p.streams {
		if s := p.streams[(first+i)%len(p.streams)]; s.submit(t) {
			return s
		}
	}
	return nil
}

// hash spreads queues over streams and dispatchers: the same here as long as the process lives.
func (x *Exchange) hash(tenant, queue, addr string) uint64 {
	var h maphash.Hash
	h.SetSeed(x.seed)
	for _, s := range [...]string{tenant, queue, addr} {
		_, _ = h.WriteString(s) // never fails
		_ = h.WriteByte(0)      // never fails
	}
	return h.Sum64()
}
