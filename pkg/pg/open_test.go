package pg_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
)

func TestSessionsHaveTheSettingsAskedFor(t *testing.T) {
	t.Parallel()
	db := pgtest.NewDatabase(t, pgtest.Roles{}).Open(pg.Options{
		AppName: "me", MaxConns: 3, RuntimeParams: map[string]string{"plan_cache_mode": "force_generic_plan", "lock_timeout": "2s"},
	})

	for name, want := range map[string]string{"application_name": "me", "plan_cache_mode": "force_generic_plan", "lock_timeout": "2s"} {
		var got string
		require.NoError(t, db.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&got))
		require.Equal(t, want, got, name)
	}
	require.Equal(t, int32(3), db.Stat().MaxConns())
}

func TestOpenWaitsForAServerThatIsStarting(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, localpg.Options{})
	require.NoError(t, server.Kill(t.Context()))
	opened := make(chan error, 1)
	go func() {
		db, err := pg.Open(t.Context(), server.DSN("postgres"), pg.Options{StartPatience: time.Minute})
		if err == nil {
			db.Close()
		}
		opened <- err
	}()

	require.NoError(t, server.Restart(t.Context()))

	require.NoError(t, <-opened)
}

func TestOpenDoesNotWaitForWhatWillNotCome(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, localpg.Options{})

	_, err := pg.Open(t.Context(), server.DSN("absent"), pg.Options{StartPatience: time.Hour})
	require.Equal(t, "3D000", pg.Code(err), "%v", err)
	_, err = pg.Open(t.Context(), "postgres://127.0.0.1:1/x", pg.Options{StartPatience: -1})
	require.True(t, pg.IsConnectionLost(err), "%v", err)
	_, err = pg.Open(t.Context(), "no url", pg.Options{})
	require.Error(t, err)
}

func TestReadyFollowsTheServer(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, localpg.Options{})
	db, err := pg.Open(t.Context(), server.DSN("postgres"), pg.Options{})
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.Ready(t.Context()))

	require.NoError(t, server.Freeze(t.Context()))
	require.Error(t, db.Ready(t.Context()))
	require.NoError(t, server.Thaw(t.Context()))

	require.NoError(t, db.Ready(t.Context()))
}

func TestBudgetIsRefusedWhenConnectionsWouldNotFit(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, localpg.Options{MaxConnections: 20}) // 3 are the superuser's
	open := func(app string, size int) *pg.DB {
		db, err := pg.Open(t.Context(), server.DSN("postgres"), pg.Options{AppName: app, MaxConns: size})
		require.NoError(t, err)
		t.Cleanup(db.Close)
		return db
	}
	other := open("other", 1)
	require.NoError(t, other.Ready(t.Context()))
	mine := open("mine", 15)

	require.NoError(t, mine.CheckBudget(t.Context(), 1))
	err := mine.CheckBudget(t.Context(), 2)

	refusal, ok := errors.AsType[*pg.BudgetError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, pg.BudgetError{Need: 17, Used: 1, Available: 17}, *refusal)
}

func TestCounterSeesEveryStatement(t *testing.T) {
	t.Parallel()
	var counter pg.Counter
	spans := tracetest.NewSpanRecorder()
	traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	db := pgtest.NewDatabase(t, pgtest.Roles{}, accounts()).Open(pg.Options{Tracers: []pg.Tracer{&counter}, Traces: traces})
	counter.Take()
	ctx, span := traces.Tracer("test").Start(t.Context(), "work") // statements are spans within a trace only

	require.NoError(t, db.InTx(ctx, pg.ReadCommitted, func(tx pg.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE bank.accounts SET balance = 1 WHERE id = 1")
		return err
	}))

	require.Equal(t, []string{"begin isolation level read committed", "UPDATE bank.accounts SET balance = 1 WHERE id = 1", "commit"}, counter.Take())
	require.Empty(t, counter.Take())
	require.NotEmpty(t, spans.Ended())
	span.End()
}

func TestPoolMetricsAreValidAndTwoPoolsFitOneProcess(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(pg.NewCollector("one", db)))
	require.NoError(t, registry.Register(pg.NewCollector("two", db)))

	families, err := registry.Gather()

	require.NoError(t, err)
	require.Len(t, families, 18)
}

func TestThePoolCountsItsStatementsThoseOfBatchesEach(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn, err := db.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	before := db.Statements()

	_, err = conn.Exec(t.Context(), "SELECT 1")
	require.NoError(t, err)
	batch := &pgx.Batch{}
	batch.Queue("SELECT 2")
	batch.Queue("SELECT 3")
	require.NoError(t, conn.SendBatch(t.Context(), batch).Close())

	require.EqualValues(t, 3, db.Statements()-before)
}

func ExampleDB_InTx() {
	transfer := func(ctx context.Context, db *pg.DB, from, to, amount int) error {
		return db.InTx(ctx, pg.ReadCommitted, func(tx pg.Tx) error {
			if _, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance - $2 WHERE id = $1", from, amount); err != nil {
				return fmt.Errorf("withdraw: %w", err)
			}
			if _, err := tx.Exec(ctx, "UPDATE accounts SET balance = balance + $2 WHERE id = $1", to, amount); err != nil {
				return fmt.Errorf("deposit: %w", err)
			}
			return nil
		})
	}
	_ = transfer
}

func TestAPoolOfSilentConnectionsSaysSoOnceAndNotOncePerConnection(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, localpg.Options{})
	const size = 8
	db, err := pg.Open(t.Context(), server.DSN("postgres"), pg.Options{MaxConns: size, ConnectTimeout: time.Second})
	require.NoError(t, err)
	t.Cleanup(db.Close)
	busy := make([]interface{ Release() }, 0, size)
	for range size {
		conn, err := db.Acquire(t.Context())
		require.NoError(t, err)
		busy = append(busy, conn)
	}
	for _, conn := range busy {
		conn.Release()
	}
	released := time.Now()
	require.Eventually(t, func() bool { return time.Since(released) > 1500*time.Millisecond }, 10*time.Second, 10*time.Millisecond,
		"all have been idle for long enough to be asked")
	require.NoError(t, server.Freeze(t.Context()))
	t.Cleanup(func() { _ = server.Thaw(context.WithoutCancel(t.Context())) })

	began := time.Now()
	_, err = db.Exec(t.Context(), "SELECT 1")

	require.True(t, pg.IsConnectionLost(err), "%v", err)
	require.Less(t, time.Since(began), 8*time.Second, "with %d connections, of which each takes two seconds", size)
	require.NoError(t, server.Thaw(t.Context()))
	_, err = db.Exec(t.Context(), "SELECT 1")
	require.NoError(t, err, "it is back as soon as the server is")
}

func TestTheServerIsToldToNoticeThatWeVanished(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t, localpg.Options{TCP: true})
	for query, want := range map[string]string{"": "5", "&tcp_keepalives_idle=77": "77"} {
		db, err := pg.Open(t.Context(), server.TCPDSN("postgres")+query, pg.Options{})
		require.NoError(t, err)
		var got string
		require.NoError(t, db.QueryRow(t.Context(), "SHOW tcp_keepalives_idle").Scan(&got))
		db.Close()
		require.Equal(t, want, got, "what the URL says wins")
	}
}
