// Package server is the sidecar's surface: the Attach stream for the services of its host, and the internal routes of the admin listener.
package server

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/clock"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/meshhint/internal/domain"
	"postrider.dev/services/meshhint/internal/engine"
)

const (
	// keepAlive is how often a quiet stream gets an empty frame, so that the service can tell silence from quiet.
	keepAlive = time.Second
	// maxHints bounds one frame of a service.
	maxHints = 10_000
)

// Host is what the sidecar says of every node of its host, whatever the node says.
type Host struct {
	ID, Zone string
	// DeadAfter without a heartbeat, a node is dead.
	DeadAfter time.Duration
}

// Mesh serves MeshService.
type Mesh struct {
	meshv1.UnimplementedMeshServiceServer

	hub      *engine.Hub
	view     View
	clk      clock.Clock
	host     Host
	changed  func()
	draining func() <-chan struct{}
}

// NewMesh returns the service. changed is called when a node came, went or changed; draining's channel closes when streams must end.
func NewMesh(hub *engine.Hub, view View, clk clock.Clock, host Host, changed func(), draining func() <-chan struct{}) *Mesh {
	return &Mesh{hub: hub, view: view, clk: clk, host: host, changed: changed, draining: draining}
}

// Attach serves one service until its stream ends or the sidecar drains.
func (m *Mesh) Attach(stream grpc.BidiStreamingServer[meshv1.AttachRequest, meshv1.AttachResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	node, err := m.node(first.GetAnnounce())
	if err != nil {
		return err
	}
	attached := m.hub.Attach(node)
	m.changed()
	defer func() {
		m.hub.Detach(attached, !m.isDraining())
		m.changed()
	}()

	if err := stream.Send(&meshv1.AttachResponse{HostId: m.host.ID}); err != nil {
		return left(err)
	}
	m.hub.FromService(attached, first.GetHints())
	received := make(chan error, 1)
	go func() { received <- m.receive(stream, attached) }() // ends with the stream, which ends when Attach returns
	return m.send(stream.Context(), stream, attached, received)
}

func (m *Mesh) receive(stream grpc.BidiStreamingServer[meshv1.AttachRequest, meshv1.AttachResponse], a *engine.Attached) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			return err
		}
		if len(req.GetHints()) > maxHints {
			return apierr.InvalidArgument("TOO_MANY_HINTS", "hints", "a frame holds at most 10,000 hints")
		}
		if req.GetAnnounce() != nil {
			node, err := m.node(req.GetAnnounce())
			if err != nil {
				return err
			}
			m.hub.Update(a, node)
			m.changed()
		}
		m.hub.FromService(a, req.GetHints())
	}
}

func (m *Mesh) send(ctx context.Context, stream grpc.BidiStreamingServer[meshv1.AttachRequest, meshv1.AttachResponse], a *engine.Attached,
	received <-chan error,
) error {
	quiet := m.clk.NewTicker(keepAlive)
	defer quiet.Stop()
	for {
		resp := &meshv1.AttachResponse{}
		select {
		case hints := <-a.Out():
			resp.Hints = hints
		case <-quiet.C():
		case err := <-received:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-m.draining():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := stream.Send(resp); err != nil {
			return left(err)
		}
	}
}

// left says of a frame that could not be sent because its connection was closed that the service has left, as the end of the stream's context does: which of
// both is seen first is chance, and neither is a failure.
func left(err error) error {
	if status.Code(err) == codes.Unavailable {
		return context.Canceled
	}
	return err
}

func (m *Mesh) isDraining() bool {
	select {
	case <-m.draining():
		return true
	default:
		return false
	}
}

// node translates an announcement; host and zone are the sidecar's own, never the service's word.
func (m *Mesh) node(a *meshv1.Announce) (domain.Node, error) {
	if a == nil {
		return domain.Node{}, apierr.InvalidArgument("ANNOUNCE_MISSING", "announce", "the first frame must announce the service")
	}
	n := domain.Node{
		ID: a.GetNodeId(), Host: m.host.ID, Zone: m.host.Zone, DeadAfter: m.host.DeadAfter.Seconds(), Service: a.GetService(), State: domain.State(a.GetState()),
		Addresses: a.GetAddresses(), Version: a.GetVersion(),
	}
	if n.Addresses == nil {
		n.Addresses = map[string]string{}
	}
	if err := n.Check(); err != nil {
		return domain.Node{}, apierr.InvalidArgument("BAD_ANNOUNCE", "announce", err.Error())
	}
	return n, nil
}
