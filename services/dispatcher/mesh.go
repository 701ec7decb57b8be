package dispatcher

import (
	"context"

	"postrider.dev/pkg/grpcclient"
	"postrider.dev/pkg/heartbeat"
	"postrider.dev/pkg/modes"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/run"
	"postrider.dev/pkg/tenant"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/link"
	"postrider.dev/services/dispatcher/internal/store"
)

// attach prepares the stream to the host's sidecar, if there is one, and the heartbeat that stands in for it: a dispatcher that the directory calls dead
// gets no work.
func (s *service) attach(db *pg.DB) error {
	self := link.Config{
		NodeID: s.node.String(), Version: run.BuildInfo().Version,
		Addresses: map[string]string{"internal": s.advertised(), "admin": s.admin.Addr().String()},
	}
	s.back = append(s.back, heartbeat.Beside(s.env, db, s.hints.attached, func() heartbeat.Node {
		return heartbeat.Node{
			ID: self.NodeID, Host: s.cfg.Host(), Zone: s.cfg.Zone, Service: "dispatcher", State: s.hints.state.String(),
			Addresses: self.Addresses, Version: self.Version,
		}
	}))
	if s.cfg.MeshhintAddr == "" {
		s.env.Log.Info("no sidecar: work of other hosts is found by re-polling")
		return nil
	}
	conn, err := grpcclient.Dial(s.env, s.cfg.MeshhintAddr, s.cfg.ClusterSecret)
	if err != nil {
		return err
	}
	s.hints.sidecar = link.New(meshv1.NewMeshServiceClient(conn), listener{s.engine, s.modes}, s.env.Clock, s.env.Log, self)
	s.back = append(s.back, run.Part{Name: "sidecar", Run: func(ctx context.Context) error {
		defer func() { _ = conn.Close() }() // nothing uses it any more
		return s.hints.sidecar.Run(ctx)
	}})
	return nil
}

// advertised is the address under which others reach the internal listener.
func (s *service) advertised() string {
	if s.cfg.AdvertiseAddr != "" {
		return s.cfg.AdvertiseAddr
	}
	return s.rpc.Addr().String()
}

// hints passes the engine's hints to the sidecar, if there is one.
type hints struct {
	sidecar *link.Sidecar
	state   heartbeat.State
}

// attached reports whether the sidecar answers now.
func (h *hints) attached() bool { return h.sidecar != nil && h.sidecar.IsUp() }

func (h *hints) MessagesAvailable(t tenant.ID, queue string) {
	if h.sidecar != nil {
		h.sidecar.MessagesAvailable(link.QueueName{Tenant: string(t), Queue: queue})
	}
}

func (h *hints) QueueChanged(t tenant.ID, queue string, deleted bool) {
	if h.sidecar != nil {
		h.sidecar.QueueChanged(link.QueueName{Tenant: string(t), Queue: queue}, deleted)
	}
}

// routeTaken tells the others that this dispatcher has got the route of a queue.
func (h *hints) routeTaken(q store.QueueName) {
	if h.sidecar != nil {
		h.sidecar.RouteChanged(link.QueueName{Tenant: string(q.Tenant), Queue: q.Queue})
	}
}

// drain tells the others that this node goes away.
func (h *hints) drain() {
	h.state.Drain()
	if h.sidecar != nil {
		h.sidecar.SetState(h.state.String())
	}
}

// listener passes the sidecar's hints to the engine and to the modes.
type listener struct {
	engine *engine.Engine
	modes  *modes.Watch
}

func (l listener) MessagesAvailable(q link.QueueName) {
	l.engine.HintMessages(tenant.ID(q.Tenant), q.Queue)
}

func (l listener) QueueChanged(q link.QueueName) { l.engine.HintQueue(tenant.ID(q.Tenant), q.Queue) }
func (l listener) ModesChanged()                 { l.modes.Look() }

func (l listener) EverythingChanged() {
	l.engine.HintEverything()
	l.modes.Look()
}
