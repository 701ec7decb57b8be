package stack

import (
	"context"
	"fmt"
	"net"
	"strings"

	"go.uber.org/zap"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/config"
	"postrider.dev/pkg/memnet"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/run"
	"postrider.dev/services/audit"
	"postrider.dev/services/dispatcher"
	"postrider.dev/services/ingress"
	"postrider.dev/services/meshhint"
	"postrider.dev/services/scheduler"
)

// Run migrates, then serves all five until ctx ends or one fails, then drains: the front door first, what it stands on after it. ready is called
// once, when every service says that it is; nil is allowed.
func Run(ctx context.Context, cfg Config, env run.Env, ready func()) error {
	return RunWith(ctx, cfg, env, ready, nil)
}

// RunWith is Run with a seam between the sidecar and what carries its hints, for tests that lose some: see meshhint.RunWith.
func RunWith(ctx context.Context, cfg Config, env run.Env, ready func(), hints meshhint.Seam) error {
	if cfg.Meshhint.Migrate {
		if err := Migrate(ctx, env.Clock, cfg.Meshhint.DirectURL(), func(string) {}); err != nil {
			return err
		}
	}
	cfg.Shared(func(c *config.Common) { c.Migrate = false })
	env.Listen, env.Dial = inMemory(env)
	admin, err := newAdmin(ctx, cfg, env, ready)
	if err != nil {
		return err
	}
	sidecar := func(ctx context.Context, cfg meshhint.Config, env run.Env) error {
		return meshhint.RunWith(ctx, cfg, env, hints)
	}
	return run.Layers(ctx,
		[]run.Part{{Name: "admin", Run: admin.Run}, {Name: "ready", Run: admin.awaitReady}},
		[]run.Part{part("meshhint", cfg.Meshhint, env, sidecar), part("audit", cfg.Audit, env, audit.Run)},
		[]run.Part{part("dispatcher", cfg.Dispatcher, env, dispatcher.Run), part("scheduler", cfg.Scheduler, env, scheduler.Run)},
		[]run.Part{part("ingress", cfg.Ingress, env, ingress.Run)},
	)
}

// inMemory adds the process's own network to what was lent.
func inMemory(env run.Env) (func(context.Context, string) (net.Listener, error), func(context.Context, string) (net.Conn, error)) {
	network := memnet.New()
	listen := func(ctx context.Context, addr string) (net.Listener, error) {
		if strings.HasPrefix(addr, memnet.Prefix) {
			return network.Listen(ctx, addr)
		}
		return env.Listen(ctx, addr)
	}
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		if strings.HasPrefix(addr, memnet.Prefix) {
			return network.Dial(ctx, addr)
		}
		return env.Dial(ctx, addr)
	}
	return listen, dial
}

// part is a service as a part of the process; its log lines carry its name.
func part[C any](name string, cfg C, env run.Env, serve func(context.Context, C, run.Env) error) run.Part {
	env.Log = env.Log.Named(name)
	return run.Part{Name: name, Run: func(ctx context.Context) error { return serve(ctx, cfg, env) }}
}

// Migrate brings every schema of the database to its newest version, one after another, and tells what it applied.
func Migrate(ctx context.Context, clk clock.Clock, url config.Secret, progress func(string)) error {
	for _, set := range Migrations() {
		applied, err := migrate.Up(ctx, clk, url.Reveal(), set)
		if err != nil {
			return fmt.Errorf("migrate %s: %w", set.Schema, err)
		}
		for _, version := range applied {
			progress(fmt.Sprintf("%s: applied %04d", set.Schema, version))
		}
	}
	return nil
}

// logReady tells what holds readiness up, once a change.
func logReady(log *zap.Logger, service, reason string) {
	log.Debug("not ready yet", zap.String("service", service), zap.String("reason", reason))
}
