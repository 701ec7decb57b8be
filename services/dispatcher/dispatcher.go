package dispatcher

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"postrider.dev/pkg/grpcserver"
	"postrider.dev/pkg/httpserver"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/modes"
	"postrider.dev/pkg/obs"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/run"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/queue"
	"postrider.dev/services/dispatcher/internal/domain/seal"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/loop"
	"postrider.dev/services/dispatcher/internal/server"
	"postrider.dev/services/dispatcher/internal/spool"
	"postrider.dev/services/dispatcher/internal/store"
	"postrider.dev/services/dispatcher/migrations"
)

// codecs is how many segments are compressed or decompressed at the same moment.
const codecs = 4

// Migrations is the schema that the service owns.
func Migrations() migrate.Set { return migrations.Set() }

// Run serves until ctx ends or a part fails, then drains for at most cfg.DrainTimeout. nil means a clean end.
func Run(ctx context.Context, cfg Config, env run.Env) error {
	if cfg.Migrate {
		if _, err := migrate.Up(ctx, env.Clock, cfg.DirectURL().Reveal(), Migrations()); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	watch := &store.ConnectWatch{}
	hot, err := openDatabase(ctx, cfg, env, "postrider_dispatcher", cfg.PoolSize-coldPool, watch)
	if err != nil {
		return err
	}
	defer hot.Close()
	cold, err := openDatabase(ctx, cfg, env, "postrider_dispatcher_control", coldPool, watch)
	if err != nil {
		return err
	}
	defer cold.Close()
	s, err := build(ctx, cfg, env, hot, cold)
	if err != nil {
		return err
	}
	watch.Tell(s.engine.Reconnected)
	return s.run(ctx)
}

// coldPool is how many of the connections control verbs, look-ups of names and the loops share. A storm of new names waits there, and never in front of
// the commits of messages.
const coldPool = 2

func openDatabase(ctx context.Context, cfg Config, env run.Env, prefix string, size int, watch *store.ConnectWatch) (*pg.DB, error) {
	options := store.Settings()
	options.Tracers = append(options.Tracers, watch)
	options.MaxConns, options.Traces, options.Clock = size, env.Traces, env.Clock
	db, err := pg.Open(ctx, cfg.DatabaseURL.Reveal(), options)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if err := env.Metrics.Register(pg.NewCollector(prefix, db)); err != nil {
		db.Close()
		return nil, fmt.Errorf("register pool metrics: %w", err)
	}
	return db, nil
}

// service is the wired parts of one dispatcher.
type service struct {
	cfg    Config
	env    run.Env
	node   uuid.UUID // of this process, in the node directory and in every registry
	engine *engine.Engine
	rpc    *grpcserver.Server
	admin  *httpserver.Admin
	back   []run.Part // what must outlive the listener
	hints  *hints
	modes  *modes.Watch
	spool  *spool.Log // nil: none
}

// build makes everything that runs. What listens is open when it returns nil.
func build(ctx context.Context, cfg Config, env run.Env, hot, cold *pg.DB) (*service, error) {
	s := &service{cfg: cfg, env: env, node: uuid.New(), hints: &hints{}}
	enc, err := segment.NewEncoder(codecs)
	if err != nil {
		return nil, err
	}
	dec, err := segment.NewDecoder(codecs)
	if err != nil {
		return nil, err
	}
	masters, err := seal.ParseMasters(cfg.EncryptionKeys.Reveal())
	if err != nil {
		return nil, err
	}
	st, behind := store.New(hot, store.WithMasters(masters)), store.New(cold, store.WithMasters(masters))
	control := store.NewControl(behind, enc, dec).WithDefaults(queue.Defaults{Retention: cfg.DefaultRetention})
	s.modes = modes.New(env, "dispatcher", cfg.ModesRefresh, s.hints.attached,
		func(ctx context.Context) (modes.Modes, error) { return modes.Read(ctx, cold) })
	parts := engine.Parts{
		Store: st, Control: control, Encoder: enc, Decoder: dec, Hints: s.hints, Clock: env.Clock, Log: env.Log, Metrics: env.Metrics,
		Maintenance: s.maintenance,
	}
	if err := s.openSpool(&parts); err != nil {
		return nil, err
	}
	if s.engine, err = engine.New(ctx, parts, cfg.engine()); err == nil {
		err = s.serveWith(ctx, hot, behind, control)
	}
	if err != nil {
		return nil, errors.Join(err, s.closeSpool())
	}
	return s, nil
}

// serveWith makes what is around the engine.
func (s *service) serveWith(ctx context.Context, hot *pg.DB, behind *store.Store, control *store.Control) (err error) {
	cfg, env := s.cfg, s.env
	s.back = []run.Part{
		{Name: "engine", Run: s.engine.Run},
		{Name: "modes", Run: s.modes.Run},
		{Name: "reaper", Run: loop.NewReaper(behind, s.engine, env.Clock, env.Log, cfg.ReapEvery).Run},
		{Name: "delayer", Run: loop.NewDelayer(control, s.engine, env.Clock, env.Log).Run},
		{Name: "cataloguer", Run: loop.NewCataloguer(control, s.engine.TakeSeen, env.Clock, env.Log, cfg.CatalogueEvery).Run},
		{Name: "census", Run: loop.NewCensus(control, s.engine, s.node, cfg.Host(), s.hints.routeTaken, env.Clock, env.Log).Run},
		{Name: "trimmer", Run: loop.NewTrimmer(control, s.engine, env.Clock, env.Log, env.Metrics, cfg.TrimEvery).Run},
		{Name: "rewrapper", Run: loop.NewRewrapper(control, env.Clock, env.Log, env.Metrics).Run},
		{Name: "housekeeper", Run: loop.NewHousekeeper(control, behind, env.Clock, env.Log).Run},
	}
	ready := httpserver.NewReadiness()
	// Nobody else would reach the database either, and pushes may wait for it.
	ready.Add("database", httpserver.OnlyDegrades(hot.Ready))
	ready.Add("encryption keys", httpserver.OnlyDegrades(func(context.Context) error { return s.engine.KeysMissing() }))
	ready.Add("spool", httpserver.OnlyDegrades(s.spoolReady))
	if s.admin, err = httpserver.NewAdmin(ctx, env, "dispatcher", cfg.AdminAddr, cfg.ClusterSecret, ready); err != nil {
		return err
	}
	s.back = append(s.back, run.Part{Name: "admin", Run: s.admin.Run})
	if err := s.listen(ctx, ready, control); err != nil {
		s.admin.Close()
		return err
	}
	if err := s.attach(hot); err != nil {
		s.admin.Close()
		s.rpc.Close()
		return err
	}
	return nil
}

// listen opens the internal listener with both its services.
func (s *service) listen(ctx context.Context, ready *httpserver.Readiness, control *store.Control) (err error) {
	s.rpc, err = grpcserver.New(ctx, s.env, grpcserver.Options{
		Service: "dispatcher", Listener: "internal", Addr: s.cfg.Addr, ClusterSecret: s.cfg.ClusterSecret,
		DrainDelay: s.cfg.DrainDelay, DrainTimeout: s.cfg.DrainTimeout,
		OnDrain: func() {
			ready.Drain()
			s.hints.drain()
		},
	})
	if err != nil {
		return err
	}
	queuev1.RegisterQueueServiceServer(s.rpc, server.NewQueues(control, s.engine.Catalog(), s.engine.Rates(), s.engine, s.engine))
	exchange := server.NewExchange(s.engine, s.engine, control, s.modes, s.env.Clock, s.env.Log, s.rpc.Draining())
	dispatcherv1.RegisterDispatcherServiceServer(s.rpc, exchange.On(s.cfg.Host()))
	return nil
}

// run serves and drains: the listener first, while the engine still commits what is in flight.
func (s *service) run(ctx context.Context) error {
	s.env.Log.Info("dispatcher serves", zap.Stringer(obs.KeyAddr, s.rpc.Addr()))
	return errors.Join(run.Layers(ctx, s.back, []run.Part{{Name: "grpc", Run: s.rpc.Run}}), s.closeSpool())
}
