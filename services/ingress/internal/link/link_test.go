package link_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/grpcclient"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/run"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine"
	"postrider.dev/services/ingress/internal/link"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type directory struct {
	mu    sync.Mutex // guards all below
	nodes []domain.Node
	err   error
	sets  chan []engine.Target
}

func (d *directory) ListNodes(context.Context) ([]domain.Node, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nodes, d.err
}

func (d *directory) SetTargets(targets []engine.Target) { d.sets <- targets }

func (d *directory) set(err error, nodes ...domain.Node) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.nodes, d.err = nodes, err
}

func node(service, host, state, addr string) domain.Node {
	return domain.Node{Service: service, Host: host, State: state, Addresses: map[string]string{"internal": addr}}
}

func TestTheDirectoryNamesTheDispatchersAndAnOutageOfItChangesNothing(t *testing.T) {
	t.Parallel()
	dir := &directory{sets: make(chan []engine.Target, 10)}
	dir.set(nil,
		node("dispatcher", "a", "online", "a:1"), node("dispatcher", "b", "online", "b:1"), node("dispatcher", "c", "dead", "c:1"),
		node("dispatcher", "d", "draining", "d:1"), node("dispatcher", "d", "online", "d:1"), node("dispatcher", "e", "joining", "e:1"),
		node("dispatcher", "f", "draining", "f:1"), node("audit", "a", "online", "a:2"), node("dispatcher", "g", "online", ""))
	d := link.NewDirectory(dir, dir, func() bool { return true }, clock.Real{}, zap.NewNop(), "b")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()

	require.Equal(t, []engine.Target{{Addr: "a:1"}, {Addr: "b:1", Own: true}, {Addr: "d:1"}, {Addr: "f:1", Leaving: true}}, <-dir.sets)
	dir.set(errors.New("away"))
	d.Changed()
	dir.set(nil, node("dispatcher", "b", "online", "b:1"))
	require.Eventually(t, func() bool { d.Changed(); return len(dir.sets) > 0 }, 5*time.Second, time.Millisecond)
	require.Equal(t, []engine.Target{{Addr: "b:1", Own: true}}, <-dir.sets)

	cancel()
	require.NoError(t, <-ended)
	require.Empty(t, dir.sets, "an outage is no empty directory")
}

func TestTheFirstOfAListIsTheOwnHosts(t *testing.T) {
	t.Parallel()
	require.Equal(t, []engine.Target{{Addr: "a:1", Own: true}, {Addr: "b:1"}}, link.Static([]string{"a:1", "b:1"}))
}

type sidecar struct {
	meshv1.UnimplementedMeshServiceServer

	got  chan *meshv1.AttachRequest
	send chan *meshv1.AttachResponse
}

func (s *sidecar) Attach(stream grpc.BidiStreamingServer[meshv1.AttachRequest, meshv1.AttachResponse]) error {
	received := make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				received <- err
				return
			}
			s.got <- m
		}
	}()
	if err := stream.Send(&meshv1.AttachResponse{HostId: "h"}); err != nil {
		return err
	}
	for {
		select {
		case m := <-s.send:
			if err := stream.Send(m); err != nil {
				return err
			}
		case err := <-received:
			return err
		}
	}
}

type listener struct{ heard chan string }

func (l listener) RegistryChanged(registry, key string) { l.heard <- registry + "/" + key }
func (l listener) ModesChanged()                        { l.heard <- "modes" }
func (l listener) EverythingChanged()                   { l.heard <- "everything" }

func TestTheSidecarHearsOfThisNodeAndHintsCome(t *testing.T) {
	t.Parallel()
	network := memnet.New()
	l, err := network.Listen(t.Context(), "mem:sidecar")
	require.NoError(t, err)
	side := &sidecar{got: make(chan *meshv1.AttachRequest, 10), send: make(chan *meshv1.AttachResponse)}
	server := grpc.NewServer()
	meshv1.RegisterMeshServiceServer(server, side)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	conn, err := grpcclient.Dial(run.Env{Dial: network.Dial, Traces: noop.NewTracerProvider()}, "mem:sidecar", "")
	require.NoError(t, err)
	hears := listener{heard: make(chan string, 10)}
	s := link.NewSidecar(meshv1.NewMeshServiceClient(conn), hears, clock.Real{}, zap.NewNop(), &meshv1.Announce{NodeId: "n", State: "online"})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()

	require.Equal(t, "online", (<-side.got).GetAnnounce().GetState())
	require.Equal(t, "everything", <-hears.heard, "what was missed is unknown")
	side.send <- &meshv1.AttachResponse{Hints: []*meshv1.Hint{
		{Kind: &meshv1.Hint_RegistryChanged{RegistryChanged: &meshv1.RegistryChanged{Registry: link.RegistryKeys, Key: "k"}}},
		{Kind: &meshv1.Hint_MessageAvailable{MessageAvailable: &meshv1.MessageAvailable{Queue: "q"}}},
		{Kind: &meshv1.Hint_ModesChanged{ModesChanged: &meshv1.ModesChanged{Mode: "pop_maintenance"}}},
	}}
	require.Equal(t, "api_keys/k", <-hears.heard)
	require.Equal(t, "modes", <-hears.heard)
	s.ModeSet("pop_maintenance")
	require.Equal(t, "pop_maintenance", (<-side.got).GetHints()[0].GetModesChanged().GetMode())
	s.KeyChanged("mine")
	require.Equal(t, "mine", (<-side.got).GetHints()[0].GetRegistryChanged().GetKey())
	s.SetState("draining")
	require.Equal(t, "draining", (<-side.got).GetAnnounce().GetState())
	require.True(t, s.IsUp())

	cancel()
	require.NoError(t, <-ended)
	require.NoError(t, conn.Close())
	server.Stop()
	require.NoError(t, <-served)
}
