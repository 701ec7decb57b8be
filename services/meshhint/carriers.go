package meshhint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"postrider.dev/pkg/config"
	"postrider.dev/pkg/redisconn"
	"postrider.dev/pkg/run"
	"postrider.dev/services/meshhint/internal/engine"
	"postrider.dev/services/meshhint/internal/link"
	"postrider.dev/services/meshhint/internal/mesh"
	"postrider.dev/services/meshhint/internal/mesh/handshake"
	"postrider.dev/services/meshhint/internal/mesh/peer"
	"postrider.dev/services/meshhint/internal/server"
	"postrider.dev/services/meshhint/internal/store"
)

// meshPort is where sidecars listen for one another unless they are told otherwise.
const meshPort = 7403

// carriers says what is to carry hints.
func (c Config) carriers() (tcp, redis bool, err error) {
	for name := range strings.SplitSeq(c.HintCarriers, ",") {
		switch strings.TrimSpace(name) {
		case "tcp":
			tcp = true
		case "redis":
			redis = true
		case "none":
		default:
			return false, false, fmt.Errorf("HINT_CARRIERS: %q is no carrier; tcp, redis and none are", name)
		}
	}
	return tcp && c.meshListen() != "", redis && c.RedisURL.IsSet(), nil
}

// meshListen is where the mesh listens; empty: nowhere, since there are no peers and nobody asked for it.
func (c Config) meshListen() string {
	if c.MeshListen == "" && len(c.meshPeers()) > 0 {
		return net.JoinHostPort("", strconv.Itoa(meshPort))
	}
	return c.MeshListen
}

// meshPeers are the peers that the settings name.
func (c Config) meshPeers() []peer.Address { return peer.ParseList(c.MeshPeers, c.meshPort()) }

// meshPort is the port of a peer that is named without one: that of the own listener, since the settings of all hosts are alike.
func (c Config) meshPort() int {
	_, text, err := net.SplitHostPort(c.MeshListen)
	if port, perr := strconv.ParseUint(text, 10, 16); err == nil && perr == nil && port > 0 {
		return int(port)
	}
	return meshPort
}

// meshSecret is what proves a sidecar to its peers.
func (c Config) meshSecret() config.Secret {
	if c.MeshSecret.IsSet() {
		return c.MeshSecret
	}
	return c.ClusterSecret
}

func (c Config) validateMesh() error {
	tcp, _, err := c.carriers()
	if err != nil || !tcp {
		return nil //nolint:nilerr // reported by Validate
	}
	var open error
	if c.MeshTLSCert == "" && !c.MeshAllowOpen {
		open = config.NonLoopbackNeeds("MESH_LISTEN", c.meshListen(), "MESH_SECRET, CLUSTER_SECRET, MESH_TLS_CERT or MESH_ALLOW_OPEN", c.meshSecret())
	}
	return errors.Join(
		open,
		config.Address("MESH_LISTEN", c.meshListen()),
		config.LongSecret("MESH_SECRET", c.MeshSecret, config.MinSecretBytes),
		config.Between("MESH_HEARTBEAT_EVERY", c.MeshHeartbeat, 10*time.Millisecond, time.Minute),
		config.AtMost("MESH_HEARTBEAT_EVERY (three times)", 3*c.MeshHeartbeat, c.MeshDeadAfter),
		config.AtMost("MESH_DEAD_AFTER", c.MeshDeadAfter, time.Hour),
		mesh.CheckFiles(c.MeshTLSCert, c.MeshTLSKey, c.MeshTLSCA),
	)
}

// carriers are what brings hints to other hosts and theirs here: each of the two may be nil.
type carriers struct {
	redis *link.Redis
	mesh  *mesh.Mesh
	parts []run.Part
	close func() error // for carriers that were never run
}

func openCarriers(ctx context.Context, cfg Config, env run.Env, nodeID string, st *store.Store, m *engine.Metrics) (c carriers, err error) {
	tcp, redis, err := cfg.carriers()
	if err != nil {
		return c, err
	}
	c.close = func() error { return nil }
	if tcp {
		if err := c.openMesh(ctx, cfg, env, nodeID, st); err != nil {
			return c, err
		}
	}
	if redis {
		client, err := redisconn.Open(cfg.RedisURL.Reveal(), redisconn.Options{})
		if err != nil {
			return c, errors.Join(err, c.close())
		}
		c.redis = link.NewRedis(client, env.Clock, cfg.RedisChannel, uuid.NewString(), m, env.Log)
		closeMesh := c.close
		c.close = func() error { return errors.Join(closeMesh(), client.Close()) }
		c.parts = append(c.parts, run.Part{Name: "redis", Run: func(ctx context.Context) error { return errors.Join(c.redis.Run(ctx), client.Close()) }})
	}
	if !tcp && !redis {
		env.Log.Info("no carrier: hints stay on this host, others find work by re-polling")
	}
	return c, nil
}

func (c *carriers) openMesh(ctx context.Context, cfg Config, env run.Env, nodeID string, st *store.Store) error {
	settings := mesh.Config{
		Self: handshake.Identity{ServerID: nodeID, Host: cfg.Host()}, Secret: handshake.Secret(cfg.meshSecret().Reveal()),
		Listen: cfg.meshListen(), Port: cfg.meshPort(), Peers: cfg.meshPeers(), HeartbeatEvery: cfg.MeshHeartbeat, DeadAfter: cfg.MeshDeadAfter,
	}
	if cfg.MeshListen != "" {
		settings.Directory = func(ctx context.Context) ([]string, error) { return st.MeshPeers(ctx, nodeID) }
	}
	if cfg.MeshTLSCert != "" {
		var err error
		if settings.TLS, err = mesh.NewTLS(cfg.MeshTLSCert, cfg.MeshTLSKey, cfg.MeshTLSCA, cfg.MeshTLSName, env.Log); err != nil {
			return err
		}
	}
	opened, err := mesh.Open(ctx, env, settings)
	if err != nil {
		return err
	}
	env.Log.Info("mesh listens", zap.Stringer("addr", opened.Addr()), zap.Bool("secured", len(settings.Secret) > 0), zap.Bool("tls", settings.TLS != nil))
	c.mesh, c.close = opened, opened.Close
	c.parts = append(c.parts, run.Part{Name: "mesh", Run: opened.Run})
	return nil
}

// publishers are the carriers as the hub sees them.
func (c *carriers) publishers(seam Seam) (out []engine.Publish) {
	if c.mesh != nil {
		out = append(out, c.mesh.Publish)
	}
	if c.redis != nil {
		out = append(out, c.redis.Publish)
	}
	if seam != nil {
		for n, publish := range out {
			out[n] = seam(publish)
		}
	}
	return out
}

// receive says who gets the hints of other hosts.
func (c *carriers) receive(hub *engine.Hub) {
	if c.mesh != nil {
		c.mesh.Receive(hub)
	}
	if c.redis != nil {
		c.redis.Receive(hub)
	}
}

// view is what the sidecar shows of its mesh, or why it has none.
func (c *carriers) view(cfg Config, st *store.Store) server.View {
	v := server.View{Host: cfg.Host(), Modes: st.Modes, Off: "no_peers"}
	if c.mesh != nil {
		v.Stats = c.mesh.Stats
	} else if cfg.meshListen() != "" {
		v.Off = "carrier_off"
	}
	return v
}

// addresses are where this sidecar can be reached, by purpose.
func (c *carriers) addresses(cfg Config, internal, admin net.Addr) map[string]string {
	out := map[string]string{"internal": internal.String(), "admin": admin.String()}
	if addr := c.advertised(cfg); addr != "" {
		out["mesh"] = addr
	}
	return out
}

// advertised is the address under which other sidecars reach the mesh; empty where they cannot know one.
func (c *carriers) advertised(cfg Config) string {
	if c.mesh == nil || cfg.MeshListen == "" {
		return ""
	}
	if cfg.MeshAdvertise != "" {
		return cfg.MeshAdvertise
	}
	addr := c.mesh.Addr().String()
	if host, _, err := net.SplitHostPort(addr); err == nil && net.ParseIP(host).IsUnspecified() {
		return "" // every address of the machine is none that others could dial
	}
	return addr
}
