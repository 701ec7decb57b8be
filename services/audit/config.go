package audit

import (
	"errors"
	"time"

	"postrider.dev/pkg/config"
)

// Config is what an audit service is told.
type Config struct {
	config.Common

	Addr         string        `env:"ADDR" doc:"internal gRPC listener: health"`
	MeasureEvery time.Duration `env:"MEASURE_EVERY" doc:"time between two looks at the outbox for the metrics (1s to 1h)"`
}

// Defaults returns the settings of an audit service that is told nothing.
func Defaults() Config {
	c := Config{Common: config.Defaults(), Addr: "127.0.0.1:7407", MeasureEvery: 10 * time.Second}
	c.PoolSize = 2
	return c
}

// Validate reports every problem.
func (c Config) Validate() error {
	return errors.Join(
		c.Common.Validate(),
		config.NotEmpty("DATABASE_URL", c.DatabaseURL),
		config.Address("ADDR", c.Addr),
		config.NonLoopbackNeeds("ADDR", c.Addr, "CLUSTER_SECRET", c.ClusterSecret),
		config.Between("MEASURE_EVERY", c.MeasureEvery, time.Second, time.Hour),
	)
}
