package mesh

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/run"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/meshhint/internal/mesh/frame"
	"postrider.dev/services/meshhint/internal/mesh/handshake"
	"postrider.dev/services/meshhint/internal/mesh/peer"
)

const (
	handshakeTimeout = 3 * time.Second
	// lookEvery is how often the node directory is read for peers; a peer that was accepted makes it be read at once.
	lookEvery   = 5 * time.Second
	lookTimeout = 2 * time.Second
)

// Directory finds peers. It returns the mesh addresses of the other sidecars.
type Directory func(ctx context.Context) ([]string, error)

// Config is what the mesh is to be.
type Config struct {
	Self   handshake.Identity
	Secret handshake.Secret
	TLS    *TLS // nil: no TLS
	// Listen is the address of the listener, Port what a peer without a port gets.
	Listen string
	Port   int
	Peers  []peer.Address
	// Directory finds more peers; nil: none.
	Directory      Directory
	HeartbeatEvery time.Duration
	DeadAfter      time.Duration
}

// Mesh is the carrier. Receive MUST be called before Run.
type Mesh struct {
	cfg      Config
	env      run.Env
	lis      net.Listener
	options  peer.Options
	counts   *counts
	live     *peer.Liveness
	receiver peer.Receiver
	look     chan struct{} // holds one token when the directory is to be read

	mu      sync.Mutex // guards all below
	senders map[peer.Address]*running
	claimed map[string]bool // server ids that a Sender is connected to
}

// running is a Sender and the end of it.
type running struct {
	*peer.Sender

	stop context.CancelFunc
}

// Open listens. The caller MUST call Run or Close.
func Open(ctx context.Context, env run.Env, cfg Config) (*Mesh, error) {
	lis, err := env.Listen(ctx, cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("mesh: %w", err)
	}
	m := &Mesh{
		cfg: cfg, env: env, lis: lis, counts: newCounts(env.Metrics), live: peer.NewLiveness(env.Clock, cfg.DeadAfter), look: make(chan struct{}, 1),
		senders: make(map[peer.Address]*running), claimed: make(map[string]bool),
	}
	m.options = peer.Options{
		Self: cfg.Self, Secret: cfg.Secret, Clock: env.Clock, Log: env.Log, Counts: m.counts, Dial: env.Dial,
		HeartbeatEvery: cfg.HeartbeatEvery, DeadAfter: cfg.DeadAfter, HandshakeTimeout: handshakeTimeout,
	}
	if cfg.TLS != nil {
		m.options.ServerTLS, m.options.ClientTLS = cfg.TLS.Server(), cfg.TLS.Client
	}
	m.watch(env.Metrics)
	if len(cfg.Secret) == 0 && cfg.TLS == nil {
		env.Log.Warn("THE MESH IS OPEN: whoever reaches its port can wake, invalidate and re-read at will; set MESH_SECRET or CLUSTER_SECRET",
			zap.Stringer("addr", lis.Addr()))
	}
	return m, nil
}

// Addr is where the mesh listens.
func (m *Mesh) Addr() net.Addr { return m.lis.Addr() }

// Close closes a mesh that was never run.
func (m *Mesh) Close() error { return m.lis.Close() }

// Receive says who gets the hints of peers.
func (m *Mesh) Receive(to peer.Receiver) { m.receiver = to }

// Publish queues hints for every peer. It never blocks: what does not fit into a peer's queue is dropped and counted.
func (m *Mesh) Publish(hints []*meshv1.Hint) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.senders) == 0 {
		return
	}
	frames := frame.Encode(hints)
	for _, s := range m.senders {
		s.Offer(frames)
	}
}

// Run listens, and dials every peer, until ctx ends.
func (m *Mesh) Run(ctx context.Context) error {
	lis := peer.NewListener(m.lis, m.options, m.receiver, m.live, m.joined)
	return run.All(ctx, run.Part{Name: "listener", Run: lis.Run}, run.Part{Name: "senders", Run: m.keep})
}

// joined is called when a peer was accepted. It may be new: the directory is read. Or it is back: who reached us can be reached, most likely, so the
// Senders that wait try at once, and both ways are there together.
func (m *Mesh) joined() {
	select {
	case m.look <- struct{}{}:
	default:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.senders {
		s.Retry()
	}
}

// keep has one Sender for each peer that is wanted. While the directory cannot be read the peers stay as they are.
func (m *Mesh) keep(ctx context.Context) error {
	var senders sync.WaitGroup
	defer senders.Wait()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	found := []peer.Address{}
	for {
		if addrs, err := m.find(ctx); err == nil {
			found = addrs
		} else if ctx.Err() == nil {
			m.env.Log.Warn("node directory cannot be read, peers stay as they are", zap.Error(err))
		}
		m.want(ctx, append(slices.Clone(m.cfg.Peers), found...), func(s *running, ctx context.Context) {
			senders.Go(func() {
				if err := run.All(ctx, run.Part{Name: "sender", Run: s.Run}); err != nil {
					end(err)
				}
			})
		})
		clock.Rest(ctx, m.env.Clock, lookEvery, m.look)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// find reads the directory.
func (m *Mesh) find(ctx context.Context) ([]peer.Address, error) {
	if m.cfg.Directory == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	entries, err := m.cfg.Directory(ctx)
	return peer.ParseList(entries, m.cfg.Port), err
}

// want starts the Senders that are missing and stops those that are too many.
func (m *Mesh) want(ctx context.Context, addrs []peer.Address, start func(*running, context.Context)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for addr, s := range m.senders {
		if !slices.Contains(addrs, addr) {
			s.stop()
			delete(m.senders, addr)
		}
	}
	for _, addr := range addrs {
		if m.senders[addr] != nil {
			continue
		}
		alive, stop := context.WithCancel(ctx)
		s := &running{Sender: peer.NewSender(addr, m.options, m.claim), stop: stop}
		m.senders[addr] = s
		start(s, alive)
	}
}

// claim lets one Sender at a time be connected to a sidecar, and none to this one: the same list of peers may go to all hosts, and a peer may be known by
// two addresses.
func (m *Mesh) claim(serverID string) (release func(), ok bool) {
	if serverID == m.cfg.Self.ServerID {
		return nil, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.claimed[serverID] {
		return nil, false
	}
	m.claimed[serverID] = true
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.claimed, serverID)
	}, true
}

// Stats is the mesh at one moment.
type Stats struct {
	ServerID                                   string
	Port                                       int
	Secured, TLS                               bool
	Peers                                      []peer.Status
	Alive, Dead                                int
	Sent, Received, Dropped, HandshakeFailures uint64
}

// Stats shows the mesh.
func (m *Mesh) Stats() Stats {
	s := Stats{
		ServerID: m.cfg.Self.ServerID, Port: portOf(m.lis.Addr()), Secured: len(m.cfg.Secret) > 0, TLS: m.cfg.TLS != nil,
		Sent: m.counts.sent.Load(), Received: m.counts.received.Load(), Dropped: m.counts.dropped.Load(),
		HandshakeFailures: m.counts.handshakeFailures.Load(),
	}
	s.Alive, s.Dead = m.live.Count()
	m.mu.Lock()
	senders := slices.Collect(maps.Values(m.senders))
	m.mu.Unlock()
	for _, p := range senders {
		s.Peers = append(s.Peers, p.Status())
	}
	slices.SortFunc(s.Peers, func(a, b peer.Status) int { return peer.Compare(a.Address, b.Address) })
	return s
}

func portOf(a net.Addr) int {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.Port
	}
	return 0
}
