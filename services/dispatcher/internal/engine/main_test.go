package engine_test

import (
	"context"
	"fmt"
	"testing"
	"testing/fstest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/run/runtest"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/seal"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/engine"
	"postrider.dev/services/dispatcher/internal/store"
	"postrider.dev/services/dispatcher/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// ten is the tenant of the tests.
const ten = tenant.ID("acme")

// node is one engine on a database, as one dispatcher has it.
type node struct {
	*engine.Engine

	t       testing.TB
	store   *store.Store
	control *store.Control
	db      *pg.DB
	count   *pg.Counter
	reg     *prometheus.Registry
	stop    func()
}

// nodeOptions change what a node is made with.
type nodeOptions struct {
	hints engine.Hinter
	cfg   func(*engine.Config)
	pool  func(*pg.Options)
	clk   clock.Clock
	parts func(*engine.Parts)
	keys  string // master keys
}

func database(t testing.TB) string {
	t.Helper()
	audit := migrate.Set{Schema: "audit", FS: fstest.MapFS{"0001_outbox.sql": &fstest.MapFile{Data: []byte(`-- +goose Up
CREATE FUNCTION audit.enqueue(tenant text, actor text, action text, resource text, detail jsonb) RETURNS void LANGUAGE sql AS 'SELECT';
`)}}}
	return pgtest.NewDatabase(t, pgtest.Roles{}, audit, migrations.Set()).URL()
}

// newNode starts an engine on the database; it ends with the test, or with stop.
func newNode(t testing.TB, url string, o nodeOptions) *node {
	t.Helper()
	n := &node{t: t, count: &pg.Counter{}, reg: prometheus.NewRegistry()}
	opts := store.Settings()
	opts.Tracers = append(opts.Tracers, n.count)
	if o.pool != nil {
		o.pool(&opts)
	}
	db, err := pg.Open(t.Context(), url, opts)
	require.NoError(t, err)
	enc, err := segment.NewEncoder(2)
	require.NoError(t, err)
	dec, err := segment.NewDecoder(2)
	require.NoError(t, err)
	opts.MaxConns = 2
	cold, err := pg.Open(t.Context(), url, opts)
	require.NoError(t, err)
	n.db = db
	masters, err := seal.ParseMasters(o.keys)
	require.NoError(t, err)
	n.store = store.New(db, store.WithMasters(masters))
	n.control = store.NewControl(store.New(cold, store.WithMasters(masters)), enc, dec)
	cfg := engine.Defaults()
	if o.cfg != nil {
		o.cfg(&cfg)
	}
	if o.hints == nil {
		o.hints = noHints{}
	}
	if o.clk == nil {
		o.clk = clock.Real{}
	}
	parts := engine.Parts{
		Store: n.store, Control: n.control, Encoder: enc, Decoder: dec, Hints: o.hints, Clock: o.clk, Log: logger(t), Metrics: n.reg,
	}
	if o.parts != nil {
		o.parts(&parts)
	}
	n.Engine, err = engine.New(t.Context(), parts, cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	stopped := false
	n.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		require.NoError(t, <-ended)
		dec.Close()
		cold.Close()
		db.Close()
	}
	t.Cleanup(n.stop)
	return n
}

// noHints tells nobody.
type noHints struct{}

func (noHints) MessagesAvailable(tenant.ID, string) {}

func (noHints) QueueChanged(tenant.ID, string, bool) {}

func logger(t testing.TB) *zap.Logger {
	t.Helper()
	if testing.Verbose() {
		return zaptest.NewLogger(t)
	}
	return zap.NewNop()
}

// metric reads a counter or gauge of the node.
func (n *node) metric(name string) float64 {
	n.t.Helper()
	families, err := n.reg.Gather()
	require.NoError(n.t, err)
	for _, f := range families {
		if f.GetName() == "postrider_dispatcher_"+name {
			m := f.GetMetric()[0]
			if f.GetType() == dto.MetricType_GAUGE {
				return m.GetGauge().GetValue()
			}
			return m.GetCounter().GetValue()
		}
	}
	n.t.Fatalf("no metric %s", name)
	return 0
}

func item(partition, payload string) *queuev1.PushItem {
	return &queuev1.PushItem{Partition: partition, Payload: []byte(payload)}
}

func (n *node) push(queue string, items ...*queuev1.PushItem) []*queuev1.PushResult {
	n.t.Helper()
	resp, err := n.Push(n.t.Context(), ten, &queuev1.PushRequest{Queue: queue, Items: items})
	require.NoError(n.t, err)
	for _, r := range resp.GetResults() {
		require.Equal(n.t, queuev1.PushStatus_PUSH_STATUS_QUEUED, r.GetStatus(), r.GetError())
	}
	return resp.GetResults()
}

func (n *node) pop(req *queuev1.PopRequest) *queuev1.PopResponse {
	n.t.Helper()
	resp, err := n.Pop(n.t.Context(), ten, req)
	require.NoError(n.t, err)
	return resp
}

func (n *node) ackAll(queue, lease string) {
	n.t.Helper()
	_, err := n.Ack(n.t.Context(), ten, &queuev1.AckRequest{Queue: queue, Lease: lease, AckRest: true})
	require.NoError(n.t, err)
}

// set gives the queue "q" options, as another dispatcher does: nothing here is told.
func (n *node) set(url, config string) {
	n.t.Helper()
	n.setQueue(url, "q", config)
}

func (n *node) setQueue(url, queue, config string) {
	n.t.Helper()
	conn, err := pg.Connect(n.t.Context(), url, pg.Options{})
	require.NoError(n.t, err)
	defer func() { require.NoError(n.t, conn.Close(n.t.Context())) }()
	_, _, err = n.control.EnsureQueue(n.t.Context(), ten, queue)
	require.NoError(n.t, err)
	_, err = conn.Exec(n.t.Context(), `WITH q AS (UPDATE dispatcher.queues SET config = $1::jsonb, config_version = config_version + 1
		WHERE tenant_id = $2 AND name = $3 RETURNING id, config_version)
		UPDATE dispatcher.shards s SET config_version = q.config_version FROM q WHERE s.queue_id = q.id`, config, string(ten), queue)
	require.NoError(n.t, err)
}

func payloads(resp *queuev1.PopResponse) []string {
	var out []string
	for _, d := range resp.GetDeliveries() {
		out = append(out, string(d.GetPayload()))
	}
	return out
}

func seconds(s float64) *durationpb.Duration {
	return durationpb.New(time.Duration(s * float64(time.Second)))
}

// eventually waits for a fact.
func eventually(t testing.TB, what func() error) {
	t.Helper()
	runtest.Eventually(t, what)
}

func wantf(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}
