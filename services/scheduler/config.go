package scheduler

import (
	"errors"
	"time"

	"postrider.dev/pkg/config"
	"postrider.dev/pkg/fence"
	"postrider.dev/pkg/leader"
)

// Config is what a scheduler is told.
type Config struct {
	config.Common

	Addr          string        `env:"ADDR" doc:"internal gRPC listener: health"`
	ProofEvery    time.Duration `env:"PROOF_EVERY" doc:"how often a leader looks whether it still holds its lock; under a third of TRUST_TTL"`
	TrustTTL      time.Duration `env:"TRUST_TTL" doc:"how long a leader believes one look, less TRUST_MARGIN"`
	TrustMargin   time.Duration `env:"TRUST_MARGIN" doc:"taken off TRUST_TTL, for what is still on its way when trust ends"`
	CampaignEvery time.Duration `env:"CAMPAIGN_EVERY" doc:"how often, jittered, a standby tries to become the leader"`
}

// Defaults returns the settings of a scheduler that is told nothing.
func Defaults() Config {
	c := Config{
		Common: config.Defaults(), Addr: "127.0.0.1:7406",
		ProofEvery: 900 * time.Millisecond, TrustTTL: 3 * time.Second, TrustMargin: 500 * time.Millisecond, CampaignEvery: 250 * time.Millisecond,
	}
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
		config.Between("TRUST_TTL", c.TrustTTL, 100*time.Millisecond, time.Minute),
		config.Between("TRUST_MARGIN", c.TrustMargin, 0, c.TrustTTL/2),
		config.Between("PROOF_EVERY", c.ProofEvery, 10*time.Millisecond, c.TrustTTL/3),
		config.Between("CAMPAIGN_EVERY", c.CampaignEvery, 10*time.Millisecond, time.Minute),
	)
}

// elector returns the elector's share of the settings.
func (c Config) elector() leader.Config {
	return leader.Config{
		ProofEvery: c.ProofEvery, Trust: fence.Window{TTL: c.TrustTTL, Margin: c.TrustMargin}, CampaignEvery: c.CampaignEvery,
		AppName: "postrider-scheduler-elector",
	}
}
