package meshhint

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"postrider.dev/pkg/grpcserver"
	"postrider.dev/pkg/heartbeat"
	"postrider.dev/pkg/httpserver"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/run"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	"postrider.dev/services/meshhint/internal/engine"
	"postrider.dev/services/meshhint/internal/loop"
	"postrider.dev/services/meshhint/internal/server"
	"postrider.dev/services/meshhint/internal/store"
	"postrider.dev/services/meshhint/migrations"
)

// Migrations is the schema that the service owns.
func Migrations() migrate.Set { return migrate.Set{Schema: migrations.Schema, FS: migrations.FS} }

// Run serves until ctx ends or a part fails, then drains for at most cfg.DrainTimeout. nil means a clean end.
func Run(ctx context.Context, cfg Config, env run.Env) error { return RunWith(ctx, cfg, env, nil) }

// Seam stands between the sidecar and a carrier of hints: it gets what publishes them and returns what is called instead, which MUST NOT block.
type Seam func(publish func([]*meshv1.Hint)) func([]*meshv1.Hint)

// RunWith is Run with a seam at each carrier; nil: none. It is for tests that lose hints on purpose. No setting leads here, so nobody loses any by mistake.
func RunWith(ctx context.Context, cfg Config, env run.Env, seam Seam) error {
	host, nodeID := cfg.Host(), uuid.NewString()
	if cfg.Migrate {
		if _, err := migrate.Up(ctx, env.Clock, cfg.DirectURL().Reveal(), Migrations()); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	db, err := pg.Open(ctx, cfg.DatabaseURL.Reveal(), pg.Options{
		AppName: "postrider-meshhint", MaxConns: cfg.PoolSize, Traces: env.Traces, Clock: env.Clock,
	})
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer db.Close()
	if err := env.Metrics.Register(pg.NewCollector("postrider_meshhint", db)); err != nil {
		return fmt.Errorf("register pool metrics: %w", err)
	}

	metrics, st := engine.NewMetrics(env.Metrics), store.New(db)
	carried, err := openCarriers(ctx, cfg, env, nodeID, st, metrics)
	if err != nil {
		return err
	}
	hub := engine.NewHub(metrics, carried.publishers(seam)...)
	carried.receive(hub)
	beat := loop.NewHeartbeat(st, hub, metrics, env.Clock, env.Log, cfg.HeartbeatEvery)

	ready := httpserver.NewReadiness()
	ready.Add("database", httpserver.OnlyDegrades(st.Ready)) // hints flow without the directory
	admin, err := httpserver.NewAdmin(ctx, env, "meshhint", cfg.AdminAddr, cfg.ClusterSecret, ready)
	if err != nil {
		return errors.Join(err, carried.close())
	}
	state := &heartbeat.State{}
	rpc, err := grpcserver.New(ctx, env, grpcserver.Options{
		Service: "meshhint", Listener: "internal", Addr: cfg.InternalAddr, ClusterSecret: cfg.ClusterSecret,
		DrainDelay: cfg.DrainDelay, DrainTimeout: cfg.DrainTimeout, OnDrain: func() {
			ready.Drain()
			state.Drain()
		},
	})
	if err != nil {
		admin.Close()
		return errors.Join(err, carried.close())
	}
	view := carried.view(cfg, st)
	server.Internal(admin.Internal(), hub, view)
	meshv1.RegisterMeshServiceServer(rpc, server.NewMesh(hub, view, env.Clock,
		server.Host{ID: host, Zone: cfg.Zone, DeadAfter: cfg.DeadAfter}, beat.Soon, rpc.Draining))
	env.Log.Info("sidecar serves", zap.String("host_id", host), zap.Stringer("addr", rpc.Addr()))
	return run.Layers(ctx,
		append(carried.parts, run.Part{Name: "admin", Run: admin.Run}, run.Part{Name: "host_heartbeat", Run: beat.Run}, heartbeat.Alone(env, db, func() heartbeat.Node {
			return heartbeat.Node{
				ID: nodeID, Host: host, Zone: cfg.Zone, Service: "meshhint", State: state.String(), Version: run.BuildInfo().Version,
				Addresses: carried.addresses(cfg, rpc.Addr(), admin.Addr()),
			}
		})),
		[]run.Part{{Name: "grpc", Run: rpc.Run}})
}
