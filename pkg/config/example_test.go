package config_test

import (
	"errors"
	"fmt"
	"time"

	"postrider.dev/pkg/config"
)

type Config struct {
	config.Common

	LeaseTTL   time.Duration `env:"LEASE_TTL" doc:"how long a delivery is leased"`
	RenewEvery time.Duration `env:"RENEW_EVERY" doc:"must be under a third of LEASE_TTL"`
}

func Defaults() Config {
	return Config{Common: config.Defaults(), LeaseTTL: 30 * time.Second, RenewEvery: 8 * time.Second}
}

func (c Config) Validate() error {
	return errors.Join(
		c.Common.Validate(),
		config.Positive("LEASE_TTL", c.LeaseTTL),
		config.Below("RENEW_EVERY", c.RenewEvery, c.LeaseTTL/3),
	)
}

func Example() {
	cfg, err := config.Load("dispatcher", Defaults(), []string{
		"POSTRIDER_DATABASE_URL=postgres://localhost/postrider",
		"POSTRIDER_DISPATCHER_LEASE_TTL=12s",
	})
	fmt.Println(err, cfg.LeaseTTL, cfg.DatabaseURL)
	fmt.Println(cfg.Validate())
	// Output:
	// <nil> 12s ***
	// RENEW_EVERY: 8s must be below 4s
}
