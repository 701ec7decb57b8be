package meshhint

import (
	"errors"
	"time"

	"postrider.dev/pkg/config"
)

// Config is what the sidecar can be told.
type Config struct {
	config.Common

	InternalAddr   string        `env:"INTERNAL_ADDR" doc:"gRPC listener for the services of this host"`
	HintCarriers   string        `env:"HINT_CARRIERS" doc:"what carries hints between hosts: tcp, redis, both (tcp,redis) or none"`
	RedisChannel   string        `env:"REDIS_CHANNEL" doc:"pub/sub channel of the Redis carrier; fleets that share a Redis need one each"`
	MeshListen     string        `env:"MESH_LISTEN" doc:"TCP listener for the sidecars of other hosts; also makes the node directory find peers; empty: port 7403 if MESH_PEERS is set, else none"`
	MeshAdvertise  string        `env:"MESH_ADVERTISE" doc:"address under which other sidecars reach MESH_LISTEN, for the node directory; empty: the address listened on, where that names one"`
	MeshPeers      []string      `env:"MESH_PEERS" doc:"sidecars to dial, as host or host:port; may name this host too"`
	MeshSecret     config.Secret `env:"MESH_SECRET" doc:"shared by all sidecars (16 bytes or more); empty: CLUSTER_SECRET. With neither and no TLS the mesh is open"`
	MeshAllowOpen  bool          `env:"MESH_ALLOW_OPEN" doc:"let an open mesh listen beyond loopback"`
	MeshHeartbeat  time.Duration `env:"MESH_HEARTBEAT_EVERY" doc:"how often a peer is told that this sidecar lives (10ms to 1m)"`
	MeshDeadAfter  time.Duration `env:"MESH_DEAD_AFTER" doc:"a peer that sends nothing for this long is dead; at least three heartbeats"`
	MeshTLSCert    string        `env:"MESH_TLS_CERT" doc:"file of this sidecar's certificate (PEM); with MESH_TLS_KEY and MESH_TLS_CA the mesh is mutual TLS; read again when it changes"`
	MeshTLSKey     string        `env:"MESH_TLS_KEY" doc:"file of the certificate's key (PEM)"`
	MeshTLSCA      string        `env:"MESH_TLS_CA" doc:"file of the authority that every sidecar's certificate comes from (PEM)"`
	MeshTLSName    string        `env:"MESH_TLS_SERVER_NAME" doc:"the name in the certificates of all sidecars; empty: each has the host name by which it is dialled"`
	HeartbeatEvery time.Duration `env:"HEARTBEAT_EVERY" doc:"how often the host's nodes are written to the directory (100ms to 1m)"`
	DeadAfter      time.Duration `env:"DEAD_AFTER" doc:"a node without heartbeat for this long is dead; at least three heartbeats"`
}

// Defaults returns the settings of a sidecar that is told nothing.
func Defaults() Config {
	c := Config{
		Common: config.Defaults(), InternalAddr: "127.0.0.1:7405", HintCarriers: "tcp,redis", RedisChannel: "postrider:hints",
		HeartbeatEvery: time.Second, DeadAfter: 5 * time.Second, MeshHeartbeat: time.Second, MeshDeadAfter: 5 * time.Second,
	}
	c.PoolSize = 2
	return c
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	_, _, err := c.carriers()
	return errors.Join(
		c.Common.Validate(),
		config.NotEmpty("DATABASE_URL", c.DatabaseURL),
		config.Address("INTERNAL_ADDR", c.InternalAddr),
		config.NotEmpty("REDIS_CHANNEL", c.RedisChannel),
		config.NonLoopbackNeeds("INTERNAL_ADDR", c.InternalAddr, "CLUSTER_SECRET", c.ClusterSecret),
		config.Between("HEARTBEAT_EVERY", c.HeartbeatEvery, 100*time.Millisecond, time.Minute),
		config.AtMost("HEARTBEAT_EVERY (three times)", 3*c.HeartbeatEvery, c.DeadAfter),
		err,
		c.validateMesh(),
	)
}
