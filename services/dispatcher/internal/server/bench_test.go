package server

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"postrider.dev/pkg/apierr"
	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/tenant"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/placement"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/engine/catalog"
	"postrider.dev/services/dispatcher/internal/store"
	"postrider.dev/services/dispatcher/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// bench is the service on a private database, with an engine that answers by hand.
type bench struct {
	*Queues

	t     *testing.T
	db    *pg.DB
	store *store.Store
	notes *notes
	rates *catalog.Rates
	clk   *clock.Fake
	enc   *segment.Encoder

	transactor transactor
}

func newBench(t *testing.T) *bench {
	t.Helper()
	audit := migrate.Set{Schema: "audit", FS: os.DirFS("../../../audit/migrations")}
	mesh := migrate.Set{Schema: "mesh", FS: os.DirFS("../../../meshhint/migrations")}
	db := pgtest.NewDatabase(t, pgtest.Roles{}, audit, mesh, migrations.Set()).Open(store.Settings())
	b := &bench{t: t, db: db, store: store.New(db), notes: &notes{}, clk: clock.NewFake(time.Unix(1000, 0))}
	var err error
	b.enc, err = segment.NewEncoder(1)
	require.NoError(t, err)
	dec, err := segment.NewDecoder(1)
	require.NoError(t, err)
	t.Cleanup(dec.Close)
	control := store.NewControl(b.store, b.enc, dec)
	cat, err := catalog.New(control, b.clk, catalog.Defaults())
	require.NoError(t, err)
	b.rates = catalog.NewRates(b.clk)
	b.Queues = NewQueues(control, cat, b.rates, b.notes, &b.transactor)
	return b
}

// as is a context of an authenticated caller of a tenant.
func (b *bench) as(t tenant.ID) context.Context {
	return tenant.NewContext(b.t.Context(), tenant.Caller{Tenant: t, Actor: "ann", Role: tenant.Admin})
}

func (b *bench) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.db.Exec(b.t.Context(), sql, args...)
	require.NoError(b.t, err)
}

// configured makes a queue of a tenant and returns its row.
func (b *bench) configured(t tenant.ID, name string) store.Queue {
	b.t.Helper()
	_, err := b.ConfigureQueue(b.as(t), &queuev1.ConfigureQueueRequest{Queue: name})
	require.NoError(b.t, err)
	q, err := b.control.FindQueue(b.t.Context(), t, name)
	require.NoError(b.t, err)
	return q
}

// push appends one message past the engine.
func (b *bench) push(q store.Queue, m message.Message) {
	b.t.Helper()
	hash := placement.Hash(m.Partition)
	encoded, _, err := b.enc.Build([]segment.Frame{{Hash: hash, Bytes: message.AppendFrame(nil, &m)}})
	require.NoError(b.t, err)
	_, err = b.store.Flush(b.t.Context(), []store.Append{{Encoded: encoded, Shard: q.Shards[placement.Shard(hash, len(q.Shards))], FlushID: store.FlushID{1}}})
	require.NoError(b.t, err)
}

// deadLetter makes a dead letter of group g and returns the text of its id.
func (b *bench) deadLetter(q store.Queue, payload string) string {
	b.t.Helper()
	var id string
	require.NoError(b.t, b.db.QueryRow(b.t.Context(), `INSERT INTO dispatcher.dead_letters (id, tenant_id, queue_id, group_id, group_name, shard_id, "offset",
			partition_hash, partition, client_id, content_type, headers, payload, deliveries, failures, reason, last_error, failed_at)
		VALUES (lpad(to_hex((SELECT count(*) + 1 FROM dispatcher.dead_letters)), 32, '0')::uuid, $1, $2, 0, 'g', $3, 5, 0, 'p', 'cid', 'text/plain', '', $4,
			5, 4, 'rejected', '', clock_timestamp()) RETURNING id::text`,
		string(q.Tenant), q.ID, q.Shards[0], []byte(payload)).Scan(&id))
	return id
}

// audited counts entries and forgets them.
func (b *bench) audited() (out []string) {
	b.t.Helper()
	rows, err := b.db.Query(b.t.Context(), "DELETE FROM audit.outbox RETURNING tenant_id || ' ' || actor || ' ' || action || ' ' || resource")
	require.NoError(b.t, err)
	defer rows.Close()
	for rows.Next() {
		var s string
		require.NoError(b.t, rows.Scan(&s))
		out = append(out, s)
	}
	require.NoError(b.t, rows.Err())
	return out
}

// refused checks an error's code and reason, and its field when one is given.
func refused(t *testing.T, err error, code codes.Code, reason string, field ...string) {
	t.Helper()
	require.Error(t, err)
	e := apierr.From(err)
	require.Equal(t, code, e.Code, err)
	require.Equal(t, reason, e.Reason, err)
	if len(field) > 0 {
		require.Equal(t, field[0], e.Field, err)
	}
}

// notes is a Notifier that remembers.
type notes struct {
	mu  sync.Mutex // guards all
	all []string
}

func (n *notes) QueueChanged(t tenant.ID, queue string, deleted bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	what := "changed "
	if deleted {
		what = "deleted "
	}
	n.all = append(n.all, what+string(t)+"/"+queue)
}

func (n *notes) Appended(t tenant.ID, queue string, heads map[message.ShardID]message.Offset) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(heads) > 0 {
		n.all = append(n.all, "appended "+string(t)+"/"+queue)
	}
}

func (n *notes) taken() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := slices.Clone(n.all)
	n.all = nil
	return out
}
