package audit

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"postrider.dev/pkg/grpcserver"
	"postrider.dev/pkg/heartbeat"
	"postrider.dev/pkg/httpserver"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/obs"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/run"
	"postrider.dev/services/audit/internal/loop"
	"postrider.dev/services/audit/internal/store"
	"postrider.dev/services/audit/migrations"
)

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
		AppName: "postrider-audit", MaxConns: cfg.PoolSize, Traces: env.Traces, Clock: env.Clock,
	})
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer db.Close()
	if err := env.Metrics.Register(pg.NewCollector("postrider_audit", db)); err != nil {
		return fmt.Errorf("register pool metrics: %w", err)
	}
	st := store.New(db)

	ready := httpserver.NewReadiness()
	ready.Add("database", st.Ready)
	admin, err := httpserver.NewAdmin(ctx, env, "audit", cfg.AdminAddr, cfg.ClusterSecret, ready)
	if err != nil {
		return err
	}
	state := &heartbeat.State{}
	rpc, err := grpcserver.New(ctx, env, grpcserver.Options{
		Service: "audit", Listener: "internal", Addr: cfg.Addr, ClusterSecret: cfg.ClusterSecret,
		DrainDelay: cfg.DrainDelay, DrainTimeout: cfg.DrainTimeout, OnDrain: func() {
			ready.Drain()
			state.Drain()
		},
	})
	if err != nil {
		admin.Close()
		return err
	}
	nodeID := uuid.NewString()
	measurer := loop.NewMeasurer(st, env.Metrics, env.Clock, env.Log, cfg.MeasureEvery)
	env.Log.Info("audit serves", zap.Stringer(obs.KeyAddr, rpc.Addr()))
	return run.Layers(ctx,
		[]run.Part{{Name: "admin", Run: admin.Run}, {Name: "measurer", Run: measurer.Run}, heartbeat.Alone(env, db, func() heartbeat.Node {
			return heartbeat.Node{
				ID: nodeID, Host: cfg.Host(), Zone: cfg.Zone, Service: "audit", State: state.String(), Version: run.BuildInfo().Version,
				Addresses: map[string]string{"internal": rpc.Addr().String(), "admin": admin.Addr().String()},
			}
		})},
		[]run.Part{{Name: "grpc", Run: rpc.Run}})
}
