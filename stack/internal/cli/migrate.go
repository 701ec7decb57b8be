package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/config"
	"postrider.dev/pkg/run"
	"postrider.dev/stack"
)

// MigrateMain applies all migrations to POSTRIDER_DATABASE_DIRECT_URL, else POSTRIDER_DATABASE_URL, and returns the exit code.
func MigrateMain() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // the root of the process
	defer stop()
	cfg, err := config.Load("migrate", migrateConfig{}, os.Environ()) //nolint:forbidigo // the command's own surroundings
	if err == nil {
		err = config.NotEmpty("POSTRIDER_DATABASE_URL", cfg.DatabaseURL)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "migrate:", err)
		return run.ExitUsage
	}
	url := cfg.DatabaseURL
	if cfg.DatabaseDirectURL.IsSet() {
		url = cfg.DatabaseDirectURL
	}
	applied := 0
	err = stack.Migrate(ctx, clock.Real{}, url, func(line string) {
		applied++
		_, _ = fmt.Println(line)
	})
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "migrate:", err)
		return run.ExitFailed
	}
	_, _ = fmt.Printf("%d migrations applied; every schema is at its newest version\n", applied)
	return run.ExitOK
}

// migrateConfig is what the command is told.
type migrateConfig struct {
	DatabaseURL       config.Secret `env:"DATABASE_URL" doc:"PostgreSQL"`
	DatabaseDirectURL config.Secret `env:"DATABASE_DIRECT_URL" doc:"PostgreSQL without a pooler; empty: DATABASE_URL"`
}
