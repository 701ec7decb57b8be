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

// silence is how long the sidecar may say nothing before the stream is dialled again. It sends an empty frame each second.
const silence = 5 * time.Second

// Registries that hints name.
const (
	RegistryKeys  = "api_keys"
	RegistryNodes = "nodes"
	// RegistryRoutes names its entries by tenant, slash, queue.
	RegistryRoutes = "routes"
)

// Listener is told what others hinted at. Its methods MUST NOT block.
type Listener interface {
	// RegistryChanged says that an entry of a registry changed; an empty key means any.
	RegistryChanged(registry, key string)
	// ModesChanged says that a mode of the fleet changed.
	ModesChanged()
	// EverythingChanged says that hints may have been missed.
	EverythingChanged()
}

// Sidecar keeps the stream to the host's sidecar.
type Sidecar struct {
	stream *keepstream.Stream[meshv1.AttachRequest, meshv1.AttachResponse]
	listen Listener

	mu   sync.Mutex // guards self
	self *meshv1.Announce
}

// NewSidecar returns a Sidecar that is not attached until Run runs.
func NewSidecar(client meshv1.MeshServiceClient, listen Listener, clk clock.Clock, log *zap.Logger, self *meshv1.Announce) *Sidecar {
	s := &Sidecar{listen: listen, self: self}
	s.stream = keepstream.New(clk, keepstream.Config[meshv1.AttachRequest, meshv1.AttachResponse]{
		Open: func(ctx context.Context) (grpc.BidiStreamingClient[meshv1.AttachRequest, meshv1.AttachResponse], error) {
			return client.Attach(ctx)
		},
		Hello:   func() *meshv1.AttachRequest { return &meshv1.AttachRequest{Announce: s.announce()} },
		Receive: s.receive,
		Up:      listen.EverythingChanged, // hints of the time without a stream are lost
		Down:    func(err error) { log.Warn("sidecar lost", zap.Error(err)) },
		Silence: silence,
	})
	return s
}

// Run keeps the stream until ctx ends.
func (s *Sidecar) Run(ctx context.Context) error { return s.stream.Run(ctx) }

// IsUp reports whether the sidecar answers.
func (s *Sidecar) IsUp() bool { return s.stream.IsUp() }

// SetState announces another state, such as "draining".
func (s *Sidecar) SetState(state string) {
	s.mu.Lock()
	s.self = &meshv1.Announce{
		NodeId: s.self.GetNodeId(), Service: s.self.GetService(), Addresses: s.self.GetAddresses(), State: state, Version: s.self.GetVersion(),
	}
	s.mu.Unlock()
	s.stream.Send(&meshv1.AttachRequest{Announce: s.announce()})
}

// KeyChanged tells the other nodes that an API key changed.
func (s *Sidecar) KeyChanged(id string) {
	s.stream.Send(&meshv1.AttachRequest{Hints: []*meshv1.Hint{{Kind: &meshv1.Hint_RegistryChanged{
		RegistryChanged: &meshv1.RegistryChanged{Registry: RegistryKeys, Key: id},
	}}}})
}

// ModeSet tells the other nodes that a mode of the fleet changed.
func (s *Sidecar) ModeSet(mode string) {
	s.stream.Send(&meshv1.AttachRequest{Hints: []*meshv1.Hint{{Kind: &meshv1.Hint_ModesChanged{
		ModesChanged: &meshv1.ModesChanged{Mode: mode},
	}}}})
}

func (s *Sidecar) announce() *meshv1.Announce {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.self
}

func (s *Sidecar) receive(m *meshv1.AttachResponse) {
	for _, h := range m.GetHints() {
		switch k := h.GetKind().(type) {
		case *meshv1.Hint_RegistryChanged:
			s.listen.RegistryChanged(k.RegistryChanged.GetRegistry(), k.RegistryChanged.GetKey())
		case *meshv1.Hint_ModesChanged:
			s.listen.ModesChanged()
		case *meshv1.Hint_EverythingChanged:
			s.listen.EverythingChanged()
		case *meshv1.Hint_MessageAvailable, *meshv1.Hint_QueueConfigChanged: // the dispatchers' business
		}
	}
}
