package server

import (
	"context"
	"net/http"
	"time"

	"postrider.dev/pkg/modes"
	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/meshhint/internal/mesh"
)

// modesTimeout bounds the look at the modes, so that statistics are there when the database is not.
const modesTimeout = 2 * time.Second

// View is what the sidecar shows of the mesh.
type View struct {
	// Host is the sidecar's own.
	Host string
	// Stats are the mesh's own; nil where there is no mesh.
	Stats func() mesh.Stats
	// Off says why there is none.
	Off string
	// Modes reads the modes of the fleet.
	Modes func(context.Context) (modes.Modes, error)
}

// stats is the body of the statistics. What the counters count are frames; "messages" is what their consumers call them.
type stats struct {
	Enabled   bool   `json:"enabled"`
	Reason    string `json:"reason,omitempty"`
	ServerID  string `json:"server_id,omitempty"`
	Transport string `json:"transport"`
	Port      int    `json:"port,omitempty"`
	Secured   bool   `json:"secured"`
	TLS       bool   `json:"tls"`

	Peers             []peerStats `json:"peers"`
	PeersAlive        int         `json:"peers_alive"`
	PeersDead         int         `json:"peers_dead"`
	MessagesSent      uint64      `json:"messages_sent"`
	MessagesReceived  uint64      `json:"messages_received"`
	MessagesDropped   uint64      `json:"messages_dropped"`
	HandshakeFailures uint64      `json:"handshake_failures"`

	// null while the database cannot be asked.
	MaintenanceMode    *bool `json:"maintenance_mode"`
	PopMaintenanceMode *bool `json:"pop_maintenance_mode"`
}

type peerStats struct {
	Host       string  `json:"host"`
	Port       int     `json:"port"`
	Connected  bool    `json:"connected"`
	ResolvedIP *string `json:"resolved_ip"`
	ServerID   string  `json:"server_id,omitempty"`
}

const transport = "tcp-mesh"

func (v View) handle(w http.ResponseWriter, r *http.Request) { writeJSON(w, v.stats(r.Context())) }

func (v View) stats(ctx context.Context) stats {
	out := stats{Transport: transport, Peers: []peerStats{}}
	if v.Stats == nil {
		out.Reason = v.Off
	} else {
		v.fill(&out)
	}
	ctx, cancel := context.WithTimeout(ctx, modesTimeout)
	defer cancel()
	if m, err := v.Modes(ctx); err == nil {
		out.MaintenanceMode, out.PopMaintenanceMode = &m.Maintenance.Enabled, &m.PopMaintenance.Enabled
	}
	return out
}

func (v View) fill(out *stats) {
	s := v.Stats()
	out.Enabled = true
	out.ServerID, out.Port, out.Secured, out.TLS = s.ServerID, s.Port, s.Secured, s.TLS
	out.PeersAlive, out.PeersDead = s.Alive, s.Dead
	out.MessagesSent, out.MessagesReceived, out.MessagesDropped, out.HandshakeFailures = s.Sent, s.Received, s.Dropped, s.HandshakeFailures
	for _, p := range s.Peers {
		shown := peerStats{Host: p.Address.Host, Port: p.Address.Port, Connected: p.Connected, ServerID: p.ServerID}
		if p.Connected {
			shown.ResolvedIP = &p.ResolvedIP
		}
		out.Peers = append(out.Peers, shown)
	}
}

// proto is the view for other services. Its modes are in the database, where they can read them.
func (v View) proto() *adminv1.Mesh {
	if v.Stats == nil {
		return &adminv1.Mesh{Host: v.Host, Transport: transport, Reason: v.Off}
	}
	s := v.Stats()
	out := &adminv1.Mesh{
		Enabled: true, Host: v.Host, ServerId: s.ServerID, Transport: transport, Port: int32(s.Port), Secured: s.Secured, Tls: s.TLS,
		PeersAlive: int32(s.Alive), PeersDead: int32(s.Dead), MessagesSent: int64(s.Sent), MessagesReceived: int64(s.Received),
		MessagesDropped: int64(s.Dropped), HandshakeFailures: int64(s.HandshakeFailures),
	}
	for _, p := range s.Peers {
		out.Peers = append(out.Peers, &adminv1.MeshPeer{
			Host: p.Address.Host, Port: int32(p.Address.Port), Connected: p.Connected, ResolvedIp: p.ResolvedIP, ServerId: p.ServerID,
		})
	}
	return out
}

// GetMesh shows the mesh.
func (m *Mesh) GetMesh(context.Context, *meshv1.GetMeshRequest) (*meshv1.GetMeshResponse, error) {
	return &meshv1.GetMeshResponse{Mesh: m.view.proto()}, nil
}
