package pg

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"time"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/trace"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/silence"
)

// unheard is how long the server's machine may acknowledge nothing of what was sent to it before the connection is lost. Without such a bound a statement
// that is sent into a network that was cut waits for its caller's patience, and what it waits for is not known to be away. Keepalive does not help: the
// system sends none while there is something to send again.
const unheard = 5 * time.Second

// vanished are the session settings by which the server notices that we are gone without a word. Until it does it keeps the session, with its locks and its
// place among max_connections; by default for two hours.
func vanished() map[string]string {
	return map[string]string{"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3", "tcp_user_timeout": "10000"}
}

// Tracer sees statements; see Counter.
type Tracer = pgx.QueryTracer

// Options of a pool or a direct connection. Zero values mean the defaults named.
type Options struct {
	// AppName is what pg_stat_activity shows. It also lets one service know its own sessions.
	AppName string
	// MaxConns is the pool's size; 8.
	MaxConns int
	// MinConns is how many connections are kept open; 0.
	MinConns int
	// RuntimeParams are session settings, such as plan_cache_mode.
	RuntimeParams map[string]string
	// ConnectTimeout bounds one attempt to connect; 5 s.
	ConnectTimeout time.Duration
	// StartPatience is how long Open and Connect go on while the server is starting or not reachable yet; 30 s. Negative: one attempt.
	StartPatience time.Duration
	// Traces, when set, records each statement as a span.
	Traces trace.TracerProvider
	// Tracers see every statement.
	Tracers []Tracer
	// Clock; the machine's.
	Clock clock.Clock
	// Dial, when set, opens the network connections (tests put a proxy in between).
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

func (o Options) withDefaults() Options {
	if o.MaxConns == 0 {
		o.MaxConns = 8
	}
	if o.ConnectTimeout == 0 {
		o.ConnectTimeout = 5 * time.Second
	}
	if o.StartPatience == 0 {
		o.StartPatience = 30 * time.Second
	}
	if o.Clock == nil {
		o.Clock = clock.Real{}
	}
	return o
}

// DB is a pool of connections with one set of session settings. It is safe for concurrent use.
type DB struct {
	*pgxpool.Pool
	opts Options
	sent *statements
}

// Statements is how many statements the pool has sent so far: its own connections' beginnings apart, BEGIN and COMMIT among them.
func (db *DB) Statements() int64 { return db.sent.n.Load() }

// Open connects. When it returns nil, the server has answered on one connection. While the server is starting or unreachable it tries again, with
// jitter, for at most StartPatience; any other refusal (password, database) is returned at once.
func Open(ctx context.Context, dsn string, opts Options) (*DB, error) {
	opts = opts.withDefaults()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	sent := &statements{}
	opts.Tracers = append([]Tracer{sent}, opts.Tracers...)
	opts.apply(cfg.ConnConfig)
	cfg.MaxConns = int32(min(opts.MaxConns, 10_000))                // bounded
	cfg.MinConns = int32(min(opts.MinConns, opts.MaxConns, 10_000)) // bounded
	cfg.MaxConnLifetime = time.Hour
	cfg.MaxConnLifetimeJitter = 10 * time.Minute
	cfg.MaxConnIdleTime = 10 * time.Minute
	cfg.HealthCheckPeriod = 15 * time.Second
	cfg.ShouldPing = (&alive{clk: opts.Clock}).shouldPing
	cfg.PingTimeout = opts.ConnectTimeout
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open pool: %w", err)
	}
	db := &DB{Pool: pool, opts: opts, sent: sent}
	if err := opts.patiently(ctx, db.ping); err != nil {
		pool.Close()
		return nil, fmt.Errorf("open database: %w", err)
	}
	return db, nil
}

// Connect opens one connection outside any pool: for session locks, which must not pass a transaction pooler. The caller closes it.
// It waits for a starting server like Open.
func Connect(ctx context.Context, dsn string, opts Options) (*pgx.Conn, error) {
	opts = opts.withDefaults()
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	opts.apply(cfg)
	var conn *pgx.Conn
	err = opts.patiently(ctx, func(ctx context.Context) error {
		conn, err = pgx.ConnectConfig(ctx, cfg)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return conn, nil
}

// apply puts the options into a connection's configuration; what the URL says itself wins, session settings excepted.
func (o Options) apply(cfg *pgx.ConnConfig) {
	cfg.ConnectTimeout = o.ConnectTimeout
	if o.AppName != "" && cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = o.AppName
	}
	maps.Copy(cfg.RuntimeParams, o.RuntimeParams)
	for name, value := range vanished() {
		if _, given := cfg.RuntimeParams[name]; !given {
			cfg.RuntimeParams[name] = value
		}
	}
	dialer := &net.Dialer{
		Timeout:         o.ConnectTimeout, // the driver's request to stop a lost statement has none of its own, and holds a place in the pool
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
	}
	cfg.DialFunc = silence.Dialer(dialer, unheard)
	if o.Dial != nil {
		cfg.DialFunc = o.Dial
	}
	tracers := o.Tracers
	if o.Traces != nil {
		tracers = append([]Tracer{otelpgx.NewTracer(otelpgx.WithTracerProvider(o.Traces))}, tracers...)
	}
	if len(tracers) > 0 {
		cfg.Tracer = multitracer.New(tracers...)
	}
}

// patiently runs do until it succeeds, fails for good, or StartPatience is over.
func (o Options) patiently(ctx context.Context, do func(context.Context) error) error {
	deadline := o.Clock.Now().Add(o.StartPatience)
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := do(ctx)
		if err == nil || !IsConnectionLost(err) && !IsTooManyConnections(err) || o.Clock.Now().After(deadline) {
			return err
		}
		if serr := o.Clock.Sleep(ctx, pause/2+rand.N(pause)); serr != nil { //nolint:gosec // jitter needs no secret
			return errors.Join(serr, err)
		}
	}
}

func (db *DB) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, db.opts.ConnectTimeout)
	defer cancel()
	return db.Ping(ctx)
}

// Ready is nil when the server answers a query on a pooled connection within a second: the check behind /readyz.
func (db *DB) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := db.Exec(ctx, "SELECT 1"); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	return nil
}
