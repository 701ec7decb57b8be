package store_test

import (
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/placement"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/store"
	"postrider.dev/services/dispatcher/migrations"
)

// cold is one test's private database, with the rights of production, and the cold side on it. Its bench is a superuser: it looks into everything.
type cold struct {
	*bench

	database *pgtest.Database
	control  *store.Control
	enc      *segment.Encoder
	dec      *segment.Decoder
}

// newCold makes the database with the schemas of this service, of audit, whose function control actions call, and of mesh, whose
// directory routes are read with.
func newCold(t *testing.T) *cold {
	t.Helper()
	return coldOn(t, migrations.Set())
}

// coldOn is newCold with other steps of this service's schema.
func coldOn(t *testing.T, steps migrate.Set) *cold {
	t.Helper()
	audit := migrate.Set{Schema: "audit", FS: os.DirFS("../../../audit/migrations")}
	mesh := migrate.Set{Schema: "mesh", FS: os.DirFS("../../../meshhint/migrations")}
	roles, err := os.ReadFile("../../../../deploy/postgres/roles.sql")
	require.NoError(t, err)
	database := pgtest.NewDatabase(t, pgtest.Roles{SQL: string(roles), Prefix: "postrider_"}, audit, mesh, steps)
	c := &cold{bench: benchOn(t, database.URL()), database: database}
	c.enc, err = segment.NewEncoder(1)
	require.NoError(t, err)
	c.dec, err = segment.NewDecoder(1)
	require.NoError(t, err)
	t.Cleanup(c.dec.Close)
	c.control = c.another()
	return c
}

// another is another dispatcher's cold side on the same database.
func (c *cold) another() *store.Control {
	return store.NewControl(store.New(c.database.OpenAs("dispatcher", store.Settings())), c.enc, c.dec)
}

func (c *cold) queue(t tenant.ID, name string) store.Queue {
	c.t.Helper()
	q, _, err := c.control.EnsureQueue(c.t.Context(), t, name)
	require.NoError(c.t, err)
	return q
}

func (c *cold) group(q store.Queue, name string, o store.GroupOptions) store.Group {
	c.t.Helper()
	g, _, err := c.control.EnsureGroup(c.t.Context(), q, name, o)
	require.NoError(c.t, err)
	return g
}

// push appends messages, each to its partition's shard, one segment a shard.
func (c *cold) push(q store.Queue, messages ...message.Message) {
	c.t.Helper()
	frames := make(map[message.ShardID][]segment.Frame)
	for _, m := range messages {
		hash := placement.Hash(m.Partition)
		shard := q.Shards[placement.Shard(hash, len(q.Shards))]
		frames[shard] = append(frames[shard], segment.Frame{Hash: hash, Bytes: message.AppendFrame(nil, &m)})
	}
	for shard, of := range frames {
		encoded, _, err := c.enc.Build(of)
		require.NoError(c.t, err)
		done, err := c.store.Flush(c.t.Context(), []store.Append{{Encoded: encoded, Shard: shard, FlushID: flushID()}})
		require.NoError(c.t, err)
		require.Equal(c.t, store.StatusAppended, done[0].Status)
	}
}

// lease opens a lease row of a group-shard that ends an interval from now.
func (c *cold) lease(gs any, ordinal int, interval string) {
	c.t.Helper()
	c.exec(`INSERT INTO dispatcher.leases (key, expires_at, holder, entries)
		VALUES (encode(int8send($1) || int8send($2), 'hex')::uuid, clock_timestamp() + $3::interval, 'h', '')`, gs, int64(ordinal), interval)
}

// deadLetter makes a dead letter of a queue and returns its id.
func (c *cold) deadLetter(q store.Queue, group, partition, payload string) store.DeadLetterID {
	c.t.Helper()
	n := scan[int64](c.bench, "SELECT count(*) FROM dispatcher.dead_letters")
	id := store.DeadLetterID{0: 1, 14: byte(n >> 8), 15: byte(n)}
	c.exec(`INSERT INTO dispatcher.dead_letters (id, tenant_id, queue_id, group_id, group_name, shard_id, "offset", partition_hash, partition, client_id,
			content_type, headers, payload, deliveries, failures, reason, last_error, failed_at)
		VALUES ($1, $2, $3, 0, $4, $5, $6, 0, $7, 'cid', 'text/plain', $8, $9, 5, 4, 'attempts', 'boom', clock_timestamp())`,
		id, string(q.Tenant), q.ID, group, q.Shards[0], n, partition,
		store.EncodeHeaders([]message.Header{{Name: "a", Value: "1"}}), []byte(payload))
	return id
}

// log returns the messages of all shards of a queue, in order within a shard.
func (c *cold) log(q store.Queue) []message.Message {
	c.t.Helper()
	var out []message.Message
	for _, shard := range q.Shards {
		dirs, err := c.store.Directories(c.t.Context(), shard, 0, 1<<40, 1_000_000)
		require.NoError(c.t, err)
		for _, d := range dirs {
			segs, err := c.store.Bodies(c.t.Context(), shard, []message.Offset{d.Base})
			require.NoError(c.t, err)
			body, err := c.dec.Body(segs[0].Directory, segs[0].Codec, segs[0].Body)
			require.NoError(c.t, err)
			for i := range body.Len() {
				m, err := body.Message(i)
				require.NoError(c.t, err)
				out = append(out, m)
			}
		}
	}
	return out
}

// audited returns "actor action resource" of each entry, oldest first.
func (c *cold) audited() []string {
	c.t.Helper()
	rows, err := c.db.Query(c.t.Context(), "SELECT tenant_id || ' ' || actor || ' ' || action || ' ' || resource FROM audit.outbox ORDER BY id")
	require.NoError(c.t, err)
	defer rows.Close()
	var out []string
	for rows.Next() {
		var s string
		require.NoError(c.t, rows.Scan(&s))
		out = append(out, s)
	}
	require.NoError(c.t, rows.Err())
	return out
}

// purgeAll runs the purge until there is nothing left.
func (c *cold) purgeAll() {
	c.t.Helper()
	for range 10_000 {
		more, err := c.control.Purge(c.t.Context())
		require.NoError(c.t, err)
		if !more {
			return
		}
	}
	c.t.Fatal("the purge does not end")
}

// breakAudit makes every audit entry fail, as if the database died before the commit.
func (c *cold) breakAudit() {
	c.exec("ALTER TABLE audit.outbox ADD CONSTRAINT broken_ck CHECK (false) NOT VALID")
}

// everything is all that control actions may change.
func (c *cold) everything() string {
	return scan[string](c.bench, `SELECT concat_ws('|',
			(SELECT string_agg(q::text, ';' ORDER BY id) FROM dispatcher.queues q), (SELECT string_agg(g::text, ';' ORDER BY id) FROM dispatcher.groups g),
			(SELECT string_agg(s::text, ';' ORDER BY id) FROM dispatcher.shards s), (SELECT string_agg(s::text, ';' ORDER BY id) FROM dispatcher.group_shards s),
			(SELECT string_agg(d::text, ';' ORDER BY id) FROM dispatcher.dead_letters d), (SELECT count(*) FROM dispatcher.segments),
			(SELECT count(*) FROM dispatcher.garbage))`)
}

// breakCommit lets every statement of a control action succeed and its commit fail.
func (c *cold) breakCommit() {
	c.exec("CREATE FUNCTION dispatcher.refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'refused at the commit'; END$$")
	for _, table := range []string{"queues", "groups", "dead_letters", "group_shards"} {
		c.exec("CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE OR DELETE ON dispatcher." + table +
			" DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION dispatcher.refuse()")
	}
}

func (c *cold) mendAudit() { c.exec("ALTER TABLE audit.outbox DROP CONSTRAINT broken_ck") }

// race runs f n times at once and returns the errors.
func race(n int, f func(i int) error) []error {
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

func noErrors(t *testing.T, errs []error) {
	t.Helper()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

func msg(partition, payload string) message.Message {
	return message.Message{Partition: partition, ContentType: "text/plain", Payload: []byte(payload)}
}

func payloads(ms []message.Message) []string {
	out := make([]string, len(ms))
	for i, m := range ms {
		out[i] = string(m.Payload)
	}
	return out
}

func by(t tenant.ID) tenant.Caller { return tenant.Caller{Tenant: t, Actor: "ann", Role: tenant.Admin} }

func ptr[T any](v T) *T { return &v }
