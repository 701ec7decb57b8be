package config

import (
	"errors"
	"os"
	"time"
)

// Common holds the settings that every service has. Services embed it in their Config, so all have the same names, defaults and checks.
type Common struct {
	DatabaseURL       Secret        `env:"DATABASE_URL" doc:"PostgreSQL, as a URL or keyword string; may go through a pooler"`
	DatabaseDirectURL Secret        `env:"DATABASE_DIRECT_URL" doc:"PostgreSQL without a pooler, for session locks; empty: DATABASE_URL"`
	RedisURL          Secret        `env:"REDIS_URL" doc:"Redis that carries hints between hosts; empty: none, shared re-polls serve instead"`
	PoolSize          int           `env:"POOL_SIZE" doc:"most pooled PostgreSQL connections of this service (1 to 200); one direct connection comes on top"`
	Migrate           bool          `env:"MIGRATE" doc:"apply this service's migrations at start, under a lock"`
	HostID            string        `env:"HOST_ID" doc:"the unit whose services reach one another without the network; empty: the machine's host name"`
	Zone              string        `env:"ZONE" doc:"the group of hosts this host belongs to"`
	ClusterSecret     Secret        `env:"CLUSTER_SECRET" doc:"shared by all services; needed (16 bytes or more) when an internal or admin listener is not on loopback"`
	AdminAddr         string        `env:"ADMIN_ADDR" doc:"admin HTTP listener: health, metrics, pprof, /internal"`
	LogLevel          string        `env:"LOG_LEVEL" doc:"debug, info, warn or error"`
	LogFormat         string        `env:"LOG_FORMAT" doc:"json, or console for people"`
	DrainDelay        time.Duration `env:"DRAIN_DELAY" doc:"how long to stay reachable after turning not ready, so that balancers notice; 5s behind one"`
	DrainTimeout      time.Duration `env:"DRAIN_TIMEOUT" doc:"most time for requests in flight to finish, after DRAIN_DELAY"`
}

// MinSecretBytes is the length of the shortest ClusterSecret.
const MinSecretBytes = 16

// Defaults returns the settings of a service that is told nothing.
func Defaults() Common {
	return Common{
		PoolSize:     8,
		Migrate:      true,
		Zone:         "default",
		AdminAddr:    "127.0.0.1:7402",
		LogLevel:     "info",
		LogFormat:    "json",
		DrainTimeout: 25 * time.Second,
	}
}

// Shared returns c; through embedding it gives generic code access to the common part of any Config.
func (c Common) Shared() Common { return c }

// Host returns HostID, or the machine's host name where none was given.
func (c Common) Host() string {
	if c.HostID != "" {
		return c.HostID
	}
	name, err := os.Hostname()
	if err != nil || name == "" {
		return "localhost"
	}
	return name
}

// DirectURL returns the database URL for connections that must not go through a pooler.
func (c Common) DirectURL() Secret {
	if c.DatabaseDirectURL.IsSet() {
		return c.DatabaseDirectURL
	}
	return c.DatabaseURL
}

// Validate reports every problem of the common settings. Whether a database is needed is the service's own check.
func (c Common) Validate() error {
	return errors.Join(
		Between("POOL_SIZE", c.PoolSize, 1, 200),
		NotEmpty("ADMIN_ADDR", c.AdminAddr),
		NonLoopbackNeeds("ADMIN_ADDR", c.AdminAddr, "CLUSTER_SECRET", c.ClusterSecret),
		LongSecret("CLUSTER_SECRET", c.ClusterSecret, MinSecretBytes),
		OneOf("LOG_LEVEL", c.LogLevel, "debug", "info", "warn", "error"),
		OneOf("LOG_FORMAT", c.LogFormat, "json", "console"),
		Between("DRAIN_DELAY", c.DrainDelay, 0, 5*time.Minute),
		Between("DRAIN_TIMEOUT", c.DrainTimeout, 0, 10*time.Minute),
	)
}
