package meshhint

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"postrider.dev/pkg/config"
)

// Config is what the sidecar can be told.
type Config struct {
	config.Common

	InternalAddr   string        `env:"INTERNAL_ADDR" doc:"gRPC listener for the services of this host"`
	HintCarriers   string        `env:"HINT_CARRIERS" doc:"what carries hints between hosts: redis, or none"`
	RedisChannel   string        `env:"REDIS_CHANNEL" doc:"pub/sub channel of the Redis carrier; fleets that share a Redis need one each"`
	HeartbeatEvery time.Duration `env:"HEARTBEAT_EVERY" doc:"how often the host's nodes are written to the directory (100ms to 1m)"`
	DeadAfter      time.Duration `env:"DEAD_AFTER" doc:"a node without heartbeat for this long is dead; at least three heartbeats"`
}

// Defaults returns the settings of a sidecar that is told nothing.
func Defaults() Config {
	c := Config{
		Common: config.Defaults(), InternalAddr: "127.0.0.1:7405", HintCarriers: "redis", RedisChannel: "postrider:hints",
		HeartbeatEvery: time.Second, DeadAfter: 5 * time.Second,
	}
	c.PoolSize = 2
	return c
}

// Validate reports every problem at once.
func (c Config) Validate() error {
	_, err := c.carriers()
	return errors.Join(
		c.Common.Validate(),
		config.NotEmpty("DATABASE_URL", c.DatabaseURL),
		config.Address("INTERNAL_ADDR", c.InternalAddr),
		config.NotEmpty("REDIS_CHANNEL", c.RedisChannel),
		config.NonLoopbackNeeds("INTERNAL_ADDR", c.InternalAddr, "CLUSTER_SECRET", c.ClusterSecret),
		config.Between("HEARTBEAT_EVERY", c.HeartbeatEvery, 100*time.Millisecond, time.Minute),
		config.AtMost("HEARTBEAT_EVERY (three times)", 3*c.HeartbeatEvery, c.DeadAfter),
		err,
	)
}

// carriers says whether Redis carries hints.
func (c Config) carriers() (redis bool, err error) {
	for name := range strings.SplitSeq(c.HintCarriers, ",") {
		switch strings.TrimSpace(name) {
		case "redis":
			redis = true
		case "none":
		default:
			return false, fmt.Errorf("HINT_CARRIERS: %q is no carrier; redis and none are", name)
		}
	}
	return redis && c.RedisURL.IsSet(), nil
}
