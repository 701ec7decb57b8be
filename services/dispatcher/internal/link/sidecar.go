// Package link dials out: to the sidecar of the host, which announces this dispatcher to the others and carries hints both ways.
//
// Hints are prompts. What is lost here costs latency and nothing else: the shared re-poll finds what no hint told of.
package link

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/keepstream"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
)

const (
	// gather is the least time between two frames of hints: the first goes at once, and those that follow it wait for company, so that a busy queue costs
	// one frame in this time and not one a commit.
	gather = time.Millisecond
	// maxPending bounds the queues told of in one frame; beyond it the frame says that everything changed.
	maxPending = 4096
	// silence is how long the sidecar may say nothing before the stream is dialled again. The sidecar sends an empty frame each second.
	silence = 5 * time.Second
)

// maxKey is the longest key of a registry that a hint takes.
const maxKey = 255

// registryRoutes is the name of the registry of routes in hints.
const registryRoutes = "routes"

// QueueName names a queue of a tenant.
type QueueName struct{ Tenant, Queue string }

// Listener is told what others hinted at. Its methods MUST not block.
type Listener interface {
	// MessagesAvailable says that a queue may have new messages. An empty tenant means any.
	MessagesAvailable(QueueName)
	// QueueChanged says that a queue's configuration changed or that it was deleted.
	QueueChanged(QueueName)
	// ModesChanged says that a mode of the fleet changed.
	ModesChanged()
	// EverythingChanged says that hints may have been missed.
	EverythingChanged()
}

// Config describes the attaching process.
type Config struct {
	NodeID    string
	Version   string
	Addresses map[string]string
}

// Sidecar keeps the stream to the host's sidecar. Run drives it; the hint methods may be called from anywhere and never block.
type Sidecar struct {
	cfg    Config
	clk    clock.Clock
	log    *zap.Logger
	listen Listener
	stream *keepstream.Stream[meshv1.AttachRequest, meshv1.AttachResponse]
	wake   chan struct{} // holds one token while something is pending

	mu         sync.Mutex // guards the rest
	available  map[QueueName]struct{}
	changed    map[QueueName]bool // true: deleted
	routed     map[QueueName]struct{}
	overflowed bool
	state      string
}

// New returns a Sidecar that is not attached until Run runs.
func New(client meshv1.MeshServiceClient, listen Listener, clk clock.Clock, log *zap.Logger, cfg Config) *Sidecar {
	s := &Sidecar{
		cfg: cfg, clk: clk, log: log, listen: listen, wake: make(chan struct{}, 1),
		available: map[QueueName]struct{}{}, changed: map[QueueName]bool{}, routed: map[QueueName]struct{}{}, state: "online",
	}
	s.stream = keepstream.New(clk, keepstream.Config[meshv1.AttachRequest, meshv1.AttachResponse]{
		Open: func(ctx context.Context) (grpc.BidiStreamingClient[meshv1.AttachRequest, meshv1.AttachResponse], error) {
			return client.Attach(ctx)
		},
		Hello:   func() *meshv1.AttachRequest { return &meshv1.AttachRequest{Announce: s.announce()} },
		Receive: s.receive,
		Up: func() {
			log.Info("attached to the sidecar")
			listen.EverythingChanged() // hints of the time without a stream are lost
		},
		Down:    func(err error) { log.Warn("sidecar lost", zap.Error(err)) },
		Silence: silence,
	})
	return s
}

// Run keeps the stream and sends what was hinted until ctx ends.
func (s *Sidecar) Run(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.stream.Run(ctx) }() // ends with ctx; awaited below
	for {
		select {
		case <-s.wake:
			s.flush()
			_ = s.clk.Sleep(ctx, gather) // its end is noticed below
		case err := <-done:
			return err
		}
	}
}

// IsUp reports whether the sidecar answers.
func (s *Sidecar) IsUp() bool { return s.stream.IsUp() }

// SetState announces another state, such as "draining".
func (s *Sidecar) SetState(state string) {
	s.mu.Lock()
	s.state = state
	s.mu.Unlock()
	s.stream.Send(&meshv1.AttachRequest{Announce: s.announce()})
}

// MessagesAvailable tells the others that a queue has new messages. Repeats within a millisecond of a frame are one hint.
func (s *Sidecar) MessagesAvailable(q QueueName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.available[q]; ok {
		return
	}
	if len(s.available) >= maxPending {
		s.overflowed = true
	} else {
		s.available[q] = struct{}{}
	}
	s.signal()
}

// QueueChanged tells the others that a queue's configuration changed or that it was deleted.
func (s *Sidecar) QueueChanged(q QueueName, deleted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.changed) >= maxPending {
		s.overflowed = true
	} else {
		s.changed[q] = deleted
	}
	s.signal()
}

// RouteChanged tells the others that a queue is routed to another dispatcher.
func (s *Sidecar) RouteChanged(q QueueName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.routed) >= maxPending {
		s.overflowed = true
	} else {
		s.routed[q] = struct{}{}
	}
	s.signal()
}

// routeKey names a queue's entry in the registry of routes. No tenant has a slash, so whatever the queue's name has in it, it names no other queue. What is
// too long for a hint is told as any.
func routeKey(q QueueName) string {
	if key := q.Tenant + "/" + q.Queue; len(key) <= maxKey {
		return key
	}
	return ""
}

// signal needs s.mu.
func (s *Sidecar) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *Sidecar) flush() {
	s.mu.Lock()
	available, changed, routed, overflowed := s.available, s.changed, s.routed, s.overflowed
	s.available, s.changed, s.routed, s.overflowed = map[QueueName]struct{}{}, map[QueueName]bool{}, map[QueueName]struct{}{}, false
	s.mu.Unlock()
	if !s.stream.IsUp() {
		return
	}
	hints := make([]*meshv1.Hint, 0, len(available)+len(changed)+len(routed)+1)
	for q := range available {
		hints = append(hints, &meshv1.Hint{Kind: &meshv1.Hint_MessageAvailable{
			MessageAvailable: &meshv1.MessageAvailable{Tenant: &q.Tenant, Queue: q.Queue},
		}})
	}
	for q, deleted := range changed {
		hints = append(hints, &meshv1.Hint{Kind: &meshv1.Hint_QueueConfigChanged{
			QueueConfigChanged: &meshv1.QueueConfigChanged{Tenant: &q.Tenant, Queue: q.Queue, Deleted: deleted},
		}})
	}
	for q := range routed {
		hints = append(hints, &meshv1.Hint{Kind: &meshv1.Hint_RegistryChanged{
			RegistryChanged: &meshv1.RegistryChanged{Registry: registryRoutes, Key: routeKey(q)},
		}})
	}
	if overflowed {
		hints = append(hints, &meshv1.Hint{Kind: &meshv1.Hint_EverythingChanged{EverythingChanged: &meshv1.EverythingChanged{}}})
	}
	s.stream.Send(&meshv1.AttachRequest{Hints: hints})
}

func (s *Sidecar) announce() *meshv1.Announce {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &meshv1.Announce{
		NodeId: s.cfg.NodeID, Service: "dispatcher", Addresses: s.cfg.Addresses, State: s.state, Version: s.cfg.Version,
	}
}

func (s *Sidecar) receive(m *meshv1.AttachResponse) {
	for _, h := range m.GetHints() {
		switch k := h.GetKind().(type) {
		case *meshv1.Hint_MessageAvailable:
			s.listen.MessagesAvailable(QueueName{Tenant: k.MessageAvailable.GetTenant(), Queue: k.MessageAvailable.GetQueue()})
		case *meshv1.Hint_QueueConfigChanged:
			s.listen.QueueChanged(QueueName{Tenant: k.QueueConfigChanged.GetTenant(), Queue: k.QueueConfigChanged.GetQueue()})
		case *meshv1.Hint_ModesChanged:
			s.listen.ModesChanged()
		case *meshv1.Hint_EverythingChanged:
			s.listen.EverythingChanged()
		case *meshv1.Hint_RegistryChanged: // what it caches of registries is the ingress's business
		}
	}
}
