package ingress

import (
	"context"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"postrider.dev/pkg/grpcclient"
	"postrider.dev/pkg/heartbeat"
	"postrider.dev/pkg/run"
	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/link"
)

// mesh is what ties the node to the others: the sidecar, the directory, the heartbeat. Without a sidecar it polls.
type mesh struct {
	p         *parts
	conn      *grpc.ClientConn // nil without a sidecar
	sidecar   *link.Sidecar    // nil without a sidecar
	directory *link.Directory  // nil with a static list
}

func newMesh(p *parts) (*mesh, error) {
	m := &mesh{p: p}
	if len(p.cfg.DispatcherAddrs) > 0 {
		p.exchange.SetTargets(link.Static(p.cfg.DispatcherAddrs))
	} else {
		m.directory = link.NewDirectory(p.store, p.exchange, m.hinted, p.env.Clock, p.env.Log, p.cfg.Host())
	}
	if p.cfg.MeshhintAddr == "" {
		return m, nil
	}
	conn, err := grpcclient.Dial(p.env, p.cfg.MeshhintAddr, p.cfg.ClusterSecret)
	if err != nil {
		return nil, err
	}
	m.conn = conn
	n := m.node()
	m.sidecar = link.NewSidecar(meshv1.NewMeshServiceClient(conn), m, p.env.Clock, p.env.Log, &meshv1.Announce{
		NodeId: n.ID, Service: n.Service, Addresses: n.Addresses, State: n.State, Version: n.Version,
	})
	return m, nil
}

func (m *mesh) close() {
	if m.conn != nil {
		_ = m.conn.Close() // nothing uses it any more
	}
}

func (m *mesh) parts() []run.Part {
	parts := []run.Part{heartbeat.Beside(m.p.env, m.p.db, m.hinted, m.node)}
	if m.directory != nil {
		parts = append(parts, run.Part{Name: "directory", Run: m.directory.Run})
	}
	if m.sidecar != nil {
		parts = append(parts, run.Part{Name: "sidecar", Run: m.sidecar.Run})
	}
	return parts
}

func (m *mesh) node() heartbeat.Node {
	addresses := map[string]string{"http": m.p.cfg.AdvertiseHTTP, "grpc": m.p.cfg.AdvertiseGRPC, "admin": m.p.admin.Addr().String()}
	if addresses["http"] == "" {
		addresses["http"] = m.p.web.Addr().String()
	}
	if addresses["grpc"] == "" {
		addresses["grpc"] = m.p.rpc.Addr().String()
	}
	return heartbeat.Node{
		ID: m.p.nodeID, Host: m.p.cfg.Host(), Zone: m.p.cfg.Zone, Service: service, State: m.p.state.String(), Version: run.BuildInfo().Version, Addresses: addresses,
	}
}

// hinted reports whether hints arrive now.
func (m *mesh) hinted() bool { return m.sidecar != nil && m.sidecar.IsUp() }

// viewTimeout bounds the question of the sidecar.
const viewTimeout = 2 * time.Second

// view is the mesh as the host's sidecar has it. A sidecar that is away is an answer too.
func (m *mesh) view(ctx context.Context) *adminv1.Mesh {
	if m.conn == nil {
		return &adminv1.Mesh{Host: m.p.cfg.Host(), Reason: "no_sidecar"}
	}
	ctx, cancel := context.WithTimeout(ctx, viewTimeout)
	defer cancel()
	resp, err := meshv1.NewMeshServiceClient(m.conn).GetMesh(ctx, &meshv1.GetMeshRequest{})
	if err != nil {
		m.p.env.Log.Debug("the sidecar does not show its mesh", zap.Error(err))
		return &adminv1.Mesh{Host: m.p.cfg.Host(), Reason: "unreachable"}
	}
	return resp.GetMesh()
}

func (m *mesh) setState(state string) {
	if m.sidecar != nil {
		m.sidecar.SetState(state)
	}
}

func (m *mesh) keyChanged(id domain.KeyID) {
	if m.sidecar != nil {
		m.sidecar.KeyChanged(string(id))
	}
}

func (m *mesh) modeSet(mode string) {
	m.p.modes.Look() // one's own hint does not come back
	if m.sidecar != nil {
		m.sidecar.ModeSet(mode)
	}
}

// ModesChanged is told by the sidecar that a mode changed: look.
func (m *mesh) ModesChanged() { m.p.modes.Look() }

// RegistryChanged is told by the sidecar that something changed elsewhere: look.
func (m *mesh) RegistryChanged(registry, key string) {
	switch registry {
	case link.RegistryKeys:
		if key == "" {
			m.p.keys.InvalidateAll()
			return
		}
		m.p.keys.Invalidate(domain.KeyID(key))
	case link.RegistryRoutes:
		m.p.exchange.RouteChanged(key)
	case link.RegistryNodes:
		if m.directory != nil {
			m.directory.Changed()
		}
	}
}

// EverythingChanged is told when hints may have been missed.
func (m *mesh) EverythingChanged() {
	m.p.keys.InvalidateAll()
	m.p.exchange.RouteChanged("")
	m.p.modes.Look()
	if m.directory != nil {
		m.directory.Changed()
	}
}
