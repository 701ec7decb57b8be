package ingress

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"postrider.dev/pkg/grpcclient"
	"postrider.dev/pkg/grpcserver"
	"postrider.dev/pkg/heartbeat"
	"postrider.dev/pkg/httpserver"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/modes"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/run"
	adminv1 "postrider.dev/proto/gen/postrider/admin/v1"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/engine"
	"postrider.dev/services/ingress/internal/engine/answers"
	"postrider.dev/services/ingress/internal/engine/keyring"
	"postrider.dev/services/ingress/internal/engine/tail"
	"postrider.dev/services/ingress/internal/loop"
	"postrider.dev/services/ingress/internal/server"
	"postrider.dev/services/ingress/internal/store"
	"postrider.dev/services/ingress/migrations"
)

const service = "ingress"

// Migrations is the schema that the service owns.
func Migrations() migrate.Set { return migrations.Set() }

// Run serves until ctx ends or a part fails, then drains for at most cfg.DrainTimeout. nil means a clean end.
func Run(ctx context.Context, cfg Config, env run.Env) error {
	err := serve(ctx, cfg, env)
	if started := (*startError)(nil); ctx.Err() != nil && errors.As(err, &started) {
		return nil // it was told to stop before it had opened its database, which is no failure
	}
	return err
}

// startError is why nothing was served.
type startError struct {
	doing string
	err   error
}

func (e *startError) Error() string { return e.doing + ": " + e.err.Error() }

func (e *startError) Unwrap() error { return e.err }

func serve(ctx context.Context, cfg Config, env run.Env) error {
	if cfg.Migrate {
		if _, err := migrate.Up(ctx, env.Clock, cfg.DirectURL().Reveal(), Migrations()); err != nil {
			return &startError{"migrate", err}
		}
	}
	db, err := pg.Open(ctx, cfg.DatabaseURL.Reveal(), pg.Options{
		AppName: "postrider-ingress", MaxConns: cfg.PoolSize, Traces: env.Traces, Clock: env.Clock,
		RuntimeParams: map[string]string{"idle_in_transaction_session_timeout": "3s"}, // a node that vanished keeps no lock
	})
	if err != nil {
		return &startError{"open database", err}
	}
	defer db.Close()
	if err := env.Metrics.Register(pg.NewCollector("postrider_ingress", db)); err != nil {
		return fmt.Errorf("register pool metrics: %w", err)
	}

	p := &parts{cfg: cfg, env: env, db: db, store: store.New(db), nodeID: uuid.NewString()}
	if err := p.build(ctx); err != nil {
		p.close()
		return err
	}
	defer p.close()
	return run.Layers(ctx, p.outer(), p.inner(), []run.Part{{Name: "http", Run: p.web.Run}, {Name: "grpc", Run: p.rpc.Run}})
}

// parts is the service while it is put together.
type parts struct {
	cfg    Config
	env    run.Env
	db     *pg.DB
	store  *store.Store
	nodeID string
	state  heartbeat.State

	ready    *httpserver.Readiness
	admin    *httpserver.Admin
	web      *httpserver.Server
	rpc      *grpcserver.Server
	self     *grpc.ClientConn
	surfaced *server.Server
	exchange *engine.Exchange
	subs     *tail.Hub
	keys     *keyring.Ring
	mesh     *mesh
	modes    *modes.Watch
	adminKey *loop.Bootstrap // nil if none is configured
}

// build opens the listeners and wires everything; what it opened is closed by close.
func (p *parts) build(ctx context.Context) (err error) {
	cfg, env := p.cfg, p.env
	p.exchange, err = engine.New(func(addr string) (*grpc.ClientConn, error) {
		return grpcclient.Dial(env, addr, cfg.ClusterSecret)
	}, env.Clock, env.Log, env.Metrics, engine.Config{
		Streams: cfg.ExchangeStreams, MaxOps: cfg.MaxInFlight, MaxBytes: cfg.MaxInFlightSize, Patience: cfg.FailoverWait,
		RouteRefresh: cfg.RouteRefresh,
	})
	if err != nil {
		return err
	}
	if p.keys, err = keyring.New(p.store, env.Clock, keyring.Config{
		Fresh: cfg.KeyFresh, MaxStale: cfg.KeyStale, Strangers: max(1, int64(cfg.PoolSize)/4),
	}); err != nil {
		return err
	}
	if cfg.AdminKey.IsSet() {
		key, err := domain.ParseKey(cfg.AdminKey.Reveal())
		if err != nil {
			return fmt.Errorf("ADMIN_KEY: %w", err)
		}
		p.adminKey = loop.NewBootstrap(p.store, key, env.Clock, env.Log)
	}
	p.ready = p.readiness()
	if p.admin, err = httpserver.NewAdmin(ctx, env, service, cfg.AdminAddr, cfg.ClusterSecret, p.ready); err != nil {
		return err
	}
	p.web, err = httpserver.New(ctx, env, httpserver.Options{
		Service: service, Listener: "public", Addr: cfg.HTTPAddr, MaxBodyBytes: server.NoBodyLimit,
		DrainDelay: cfg.DrainDelay, DrainTimeout: cfg.DrainTimeout, OnDrain: p.drain,
	})
	if err != nil {
		return err
	}
	subs := tail.Defaults()
	subs.MaxSubscriptions, subs.BufferMessages, subs.BufferBytes = cfg.MaxSubscriptions, cfg.SubscriberMessages, cfg.SubscriberBytes
	if p.subs, err = tail.NewHub(p.exchange, p.web.Draining(), env.Clock, env.Log, env.Metrics, subs); err != nil {
		return err
	}
	return p.surface(ctx)
}

// surface builds both public surfaces.
func (p *parts) surface(ctx context.Context) (err error) {
	cfg, env := p.cfg, p.env
	room, err := answers.New(cfg.MaxAnswerBytes, env.Metrics)
	if err != nil {
		return err
	}
	p.modes = modes.New(env, service, cfg.ModesRefresh, func() bool { return p.mesh.hinted() },
		func(ctx context.Context) (modes.Modes, error) { return modes.Read(ctx, p.db) })
	needs := server.Needs{
		Modes: p.modes, ModeSet: func(mode string) { p.mesh.modeSet(mode) }, Answers: room,
		Mesh:     func(ctx context.Context) *adminv1.Mesh { return p.mesh.view(ctx) },
		Exchange: p.exchange, Subs: p.subs, Store: adminStore{p.store}, KeyChanged: p.keyChanged, Ready: p.ready.Handler(true),
		Draining: p.web.Draining(), Clock: env.Clock, Log: env.Log,
	}
	if cfg.Auth == authOn {
		needs.Keys = p.keys
	}
	surface, err := server.New(server.Config{
		Timeout: cfg.RequestTimeout, MaxBodyBytes: cfg.MaxBodyBytes, CORSOrigins: cfg.CORSOrigins, AnswerTimeout: cfg.AnswerTimeout,
	}, needs)
	if err != nil {
		return err
	}
	p.rpc, err = grpcserver.New(ctx, env, grpcserver.Options{
		Service: service, Listener: "public", Addr: cfg.GRPCAddr, Public: true, Loopback: true, StopAfter: p.web.Done(),
		DrainDelay: cfg.DrainDelay, DrainTimeout: cfg.DrainTimeout,
		Unary: surface.Unary(), Stream: []grpc.StreamServerInterceptor{surface.Stream()},
		Extra: surface.ServerOptions(),
	})
	if err != nil {
		return err
	}
	p.surfaced = surface
	surface.Register(p.rpc)
	if p.self, err = p.rpc.Self(); err != nil {
		return err
	}
	if err := surface.Mount(ctx, p.web.Router(), p.self); err != nil {
		return err
	}
	p.mesh, err = newMesh(p)
	return err
}

// close frees what build opened. After a run the servers have ended and it does nothing more to them.
func (p *parts) close() {
	if p.mesh != nil {
		p.mesh.close()
	}
	if p.self != nil {
		_ = p.self.Close() // nothing uses it any more
	}
	if p.rpc != nil {
		p.rpc.Close()
	}
	if p.surfaced != nil {
		p.surfaced.Wait()
	}
	if p.web != nil {
		p.web.Close()
	}
	if p.admin != nil {
		p.admin.Close()
	}
}

func (p *parts) outer() []run.Part {
	parts := append(p.mesh.parts(), run.Part{Name: "admin", Run: p.admin.Run}, run.Part{Name: "modes", Run: p.modes.Run},
		run.Part{Name: "housekeeper", Run: loop.NewHousekeeper(p.store, p.env.Clock, p.env.Log).Run})
	if p.adminKey != nil {
		parts = append(parts, run.Part{Name: "admin_key", Run: p.adminKey.Run})
	}
	return parts
}

func (p *parts) inner() []run.Part {
	return []run.Part{{Name: "exchange", Run: p.exchange.Run}, {Name: "subscriptions", Run: p.subs.Run}}
}

func (p *parts) drain() {
	p.ready.Drain()
	p.state.Drain()
	p.mesh.setState(p.state.String())
}

func (p *parts) keyChanged(id domain.KeyID) {
	p.keys.Invalidate(id)
	p.mesh.keyChanged(id)
}

// readiness judges the node by what it needs. Reasons are in general words: the public listener shows them.
func (p *parts) readiness() *httpserver.Readiness {
	ready := httpserver.NewReadiness()
	ready.Add("database", func(ctx context.Context) error {
		if p.store.Ready(ctx) != nil {
			return &httpserver.DegradedError{Reason: "the database cannot be reached; known API keys are honoured for a while"}
		}
		return nil
	})
	ready.Add("dispatcher", func(context.Context) error {
		if p.exchange.Usable() == 0 {
			return errors.New("no dispatcher can be reached")
		}
		return nil
	})
	ready.Add("admin_key", func(context.Context) error {
		if p.adminKey != nil && !p.adminKey.Done() {
			return errors.New("the administrator's key is not written yet")
		}
		return nil
	})
	return ready
}
