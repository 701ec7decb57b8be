package scheduler

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"postrider.dev/pkg/grpcserver"
	"postrider.dev/pkg/heartbeat"
	"postrider.dev/pkg/httpserver"
	"postrider.dev/pkg/leader"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/obs"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/run"
	"postrider.dev/services/scheduler/internal/server"
	"postrider.dev/services/scheduler/migrations"
)

// Role is the name under which schedulers contend.
const Role leader.LockKey = "scheduler"

// leaders is the table of epochs.
const leaders = "scheduler.leaders"

// Migrations is the schema that the service owns.
func Migrations() migrate.Set { return migrations.Set() }

// Run serves until ctx ends or a part fails, then drains for at most cfg.DrainTimeout. nil means a clean end.
func Run(ctx context.Context, cfg Config, env run.Env) error {
	if cfg.Migrate {
		if _, err := migrate.Up(ctx, env.Clock, cfg.DirectURL().Reveal(), Migrations()); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	db, err := pg.Open(ctx, cfg.DatabaseURL.Reveal(), pg.Options{
		AppName: "postrider-scheduler", MaxConns: cfg.PoolSize, Traces: env.Traces, Clock: env.Clock,
	})
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer db.Close()
	if err := env.Metrics.Register(pg.NewCollector("postrider_scheduler", db)); err != nil {
		return fmt.Errorf("register pool metrics: %w", err)
	}
	nodeID := uuid.NewString()
	holder := cfg.Host() + "/" + nodeID
	elector := newElector(cfg, env, holder)
	server.Metrics(env.Metrics, elector)

	ready := httpserver.NewReadiness()
	ready.Add("database", db.Ready)
	admin, err := httpserver.NewAdmin(ctx, env, "scheduler", cfg.AdminAddr, cfg.ClusterSecret, ready)
	if err != nil {
		return err
	}
	server.Internal(admin.Internal(), holder, elector)
	state := &heartbeat.State{}
	rpc, err := grpcserver.New(ctx, env, grpcserver.Options{
		Service: "scheduler", Listener: "internal", Addr: cfg.Addr, ClusterSecret: cfg.ClusterSecret,
		DrainDelay: cfg.DrainDelay, DrainTimeout: cfg.DrainTimeout, OnDrain: func() {
			ready.Drain()
			state.Drain()
		},
	})
	if err != nil {
		admin.Close()
		return err
	}
	env.Log.Info("scheduler serves", zap.Stringer(obs.KeyAddr, rpc.Addr()))
	return run.Layers(ctx,
		[]run.Part{
			{Name: "admin", Run: admin.Run},
			heartbeat.Alone(env, db, func() heartbeat.Node {
				return heartbeat.Node{
					ID: nodeID, Host: cfg.Host(), Zone: cfg.Zone, Service: "scheduler", State: state.String(), Version: run.BuildInfo().Version,
					Addresses: map[string]string{"internal": rpc.Addr().String(), "admin": admin.Addr().String()},
				}
			}),
			{Name: "elector", Run: func(ctx context.Context) error { return elector.Run(ctx, lead) }},
		},
		[]run.Part{{Name: "grpc", Run: rpc.Run}})
}

// newElector returns the elector on the direct connection; it logs each change.
func newElector(cfg Config, env run.Env, holder string) *leader.Elector {
	c := cfg.elector()
	c.OnChange = func(s leader.State) {
		if s.Leading {
			env.Log.Info("leads", obs.Epoch(s.Epoch))
			return
		}
		env.Log.Info("leads no more", obs.Epoch(s.Epoch), obs.Err(s.Err))
	}
	return leader.New(cfg.DirectURL().Reveal(), Role, leaders, holder, env.Clock, c)
}

// lead is a leader's work: none so far but to be the leader until the term ends.
func lead(ctx context.Context, _ leader.Term) error {
	<-ctx.Done()
	return nil
}
