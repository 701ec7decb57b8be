package store_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/tenant"
	"postrider.dev/services/ingress/internal/domain"
	"postrider.dev/services/ingress/internal/store"
	"postrider.dev/services/ingress/migrations"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// stubs stand for what other services export: their own tests are elsewhere.
func stub(schema, sql string) migrate.Set {
	return migrate.Set{Schema: schema, FS: fstest.MapFS{"0001_stub.sql": {Data: []byte("-- +goose Up\n" + sql)}}}
}

func auditStub() migrate.Set {
	return stub("audit", `CREATE TABLE audit.outbox (tenant text, actor text, action text, resource text, detail jsonb);
-- +goose StatementBegin
CREATE FUNCTION audit.enqueue(tenant text, actor text, action text, resource text, detail jsonb DEFAULT '{}', outcome text DEFAULT 'ok')
RETURNS void LANGUAGE sql AS 'INSERT INTO audit.outbox VALUES ($1, $2, $3, $4, $5)';
-- +goose StatementEnd
`)
}

func meshStub() migrate.Set {
	return stub("mesh", `-- +goose StatementBegin
CREATE FUNCTION mesh.directory() RETURNS TABLE (node_id text, host_id text, zone text, service text, state text, addresses jsonb,
    started_at timestamptz, heartbeat_at timestamptz, version text) LANGUAGE sql AS
$$ SELECT 'n', 'h', 'z', 'dispatcher', 'online', '{"internal":"a:1"}'::jsonb, '2030-01-01Z'::timestamptz, '2030-01-02Z'::timestamptz, 'v' $$;
-- +goose StatementEnd
CREATE TABLE mesh.rows (name text, enabled boolean, reason text, changed_at timestamptz, changed_by text, version bigint);
INSERT INTO mesh.rows VALUES ('maintenance', false, '', NULL, '', 0), ('pop_maintenance', false, '', NULL, '', 0);
-- +goose StatementBegin
CREATE FUNCTION mesh.modes() RETURNS SETOF mesh.rows LANGUAGE sql AS 'SELECT * FROM mesh.rows ORDER BY name';
-- +goose StatementEnd
-- +goose StatementBegin
CREATE FUNCTION mesh.set_mode(p_name text, p_enabled boolean, p_reason text, p_by text) RETURNS TABLE (name text, enabled boolean, reason text,
    changed_at timestamptz, changed_by text, version bigint, changed boolean) LANGUAGE sql AS $$
    UPDATE mesh.rows SET enabled = $2, reason = $3, changed_at = '2030-01-01Z', changed_by = $4, version = version + 1 WHERE name = $1
    RETURNING name, enabled, reason, changed_at, changed_by, version, $3 <> 'as it was' $$;
-- +goose StatementEnd
`)
}

func setup(t *testing.T) (*store.Store, *pg.DB) {
	t.Helper()
	db := pgtest.New(t, auditStub(), meshStub(), migrations.Set())
	return store.New(db), db
}

func admin() tenant.Caller {
	return tenant.Caller{Tenant: "default", Actor: "key:admin", Role: tenant.Admin}
}

func audited(t *testing.T, db *pg.DB) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), "SELECT concat_ws(' ', tenant, actor, action, resource) FROM audit.outbox ORDER BY 1")
	require.NoError(t, err)
	defer rows.Close()
	var out []string
	for rows.Next() {
		var line string
		require.NoError(t, rows.Scan(&line))
		out = append(out, line)
	}
	require.NoError(t, rows.Err())
	return out
}

func TestATenantIsMadeOnceAndAudited(t *testing.T) {
	t.Parallel()
	st, db := setup(t)
	made, err := st.CreateTenant(t.Context(), admin(), "acme")
	require.NoError(t, err)
	require.False(t, made.CreatedAt.IsZero())

	_, err = st.CreateTenant(t.Context(), admin(), "acme")

	require.ErrorIs(t, err, domain.ErrExists)
	all, err := st.ListTenants(t.Context())
	require.NoError(t, err)
	require.Equal(t, tenant.ID("acme"), all[0].ID)
	require.Equal(t, tenant.Default, all[1].ID)
	require.Equal(t, []string{"acme key:admin tenant.create tenant/acme"}, audited(t, db))
}

func newKey(t *testing.T) (domain.Key, domain.APIKey) {
	t.Helper()
	key, _, err := domain.NewKey(domain.Random())
	require.NoError(t, err)
	return key, domain.APIKey{ID: key.ID, Tenant: "default", Name: "n", Role: tenant.Write, Hash: key.Hash()}
}

func TestAKeyLivesUntilItIsRevokedAndOnlyItsHashIsKept(t *testing.T) {
	t.Parallel()
	st, db := setup(t)
	key, record := newKey(t)
	_, err := st.CreateKey(t.Context(), admin(), record)
	require.NoError(t, err)

	got, err := st.Key(t.Context(), key.ID)
	require.NoError(t, err)
	require.True(t, key.Matches(got.Hash))
	require.True(t, got.Live(0))
	require.Equal(t, domain.Forever, got.Left)
	for range 2 {
		require.NoError(t, st.RevokeKey(t.Context(), admin(), key.ID, ""))
	}

	got, err = st.Key(t.Context(), key.ID)
	require.NoError(t, err)
	require.False(t, got.Live(0))
	lines := audited(t, db)
	require.Len(t, lines, 2, "a repeated revocation is no action")
	require.Contains(t, strings.Join(lines, "\n"), "key.revoke key/"+string(key.ID))
}

func TestAKeyExpiresByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	st, db := setup(t)
	clk := pgtest.FreezeNow(t, db, "ingress", time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	key, record := newKey(t)
	record.ExpiresAt = clk.Now().Add(time.Minute)
	_, err := st.CreateKey(t.Context(), admin(), record)
	require.NoError(t, err)

	clk.Advance(50 * time.Second)
	got, err := st.Key(t.Context(), key.ID)
	require.NoError(t, err)
	require.Equal(t, 10*time.Second, got.Left)
	require.True(t, got.Live(9*time.Second))
	require.False(t, got.Live(10*time.Second))
	clk.Advance(10 * time.Second)
	got, err = st.Key(t.Context(), key.ID)
	require.NoError(t, err)
	require.False(t, got.Live(0))
}

func TestATenantSeesAndRevokesItsOwnKeysOnly(t *testing.T) {
	t.Parallel()
	st, _ := setup(t)
	_, err := st.CreateTenant(t.Context(), admin(), "acme")
	require.NoError(t, err)
	key, record := newKey(t)
	_, err = st.CreateKey(t.Context(), admin(), record)
	require.NoError(t, err)

	require.ErrorIs(t, st.RevokeKey(t.Context(), admin(), key.ID, "acme"), domain.ErrNotFound)
	keys, err := st.ListKeys(t.Context(), "acme")
	require.NoError(t, err)
	require.Empty(t, keys)
	_, err = st.Key(t.Context(), "none")
	require.ErrorIs(t, err, domain.ErrNotFound)
	record.Tenant = "nobody"
	_, record.ID = "", "other"
	_, err = st.CreateKey(t.Context(), admin(), record)
	require.ErrorIs(t, err, domain.ErrNotFound)
}

func TestTheConfiguredKeyIsMadeOnceByHoweverManyStart(t *testing.T) {
	t.Parallel()
	st, db := setup(t)
	key, record := newKey(t)
	record.Role = tenant.Admin
	var nodes sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		nodes.Go(func() { errs[i] = st.EnsureKey(t.Context(), admin(), record) })
	}
	nodes.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.Len(t, audited(t, db), 1)

	require.NoError(t, st.RevokeKey(t.Context(), admin(), key.ID, ""))
	require.NoError(t, st.EnsureKey(t.Context(), admin(), record))
	got, err := st.Key(t.Context(), key.ID)
	require.NoError(t, err)
	require.True(t, got.Live(0))
}

func TestWhatCannotBeAuditedDoesNotHappen(t *testing.T) {
	t.Parallel()
	st, db := setup(t)
	_, err := db.Exec(t.Context(), "DROP TABLE audit.outbox")
	require.NoError(t, err)

	_, err = st.CreateTenant(t.Context(), admin(), "acme")

	require.Error(t, err)
	all, err := st.ListTenants(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 1)
}

func TestTheDirectoryIsReadThroughItsFunctionAndMayBeMissing(t *testing.T) {
	t.Parallel()
	st, db := setup(t)
	nodes, err := st.ListNodes(t.Context())
	require.NoError(t, err)
	require.Equal(t, []domain.Node{{
		ID: "n", Host: "h", Zone: "z", Service: "dispatcher", State: "online", Version: "v", Addresses: map[string]string{"internal": "a:1"},
		StartedAt: nodes[0].StartedAt, HeartbeatAt: nodes[0].HeartbeatAt,
	}}, nodes)

	_, err = db.Exec(t.Context(), "DROP SCHEMA mesh CASCADE")
	require.NoError(t, err)
	nodes, err = st.ListNodes(t.Context())
	require.NoError(t, err)
	require.Empty(t, nodes)
}

func TestADatabaseThatIsAwayIsToldApart(t *testing.T) {
	t.Parallel()
	st, db := setup(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := db.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
	require.Error(t, err)
	_, err = st.Key(ctx, "none")
	require.ErrorIs(t, err, domain.ErrNotFound, "a new connection serves")
}

func TestAModeAndItsAuditEntryCommitTogetherAndNoChangeIsNoEntry(t *testing.T) {
	t.Parallel()
	st, db := setup(t)
	want := domain.Mode{
		Name: "pop_maintenance", Enabled: true, Reason: "moving", ChangedAt: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), ChangedBy: "key:admin", Version: 1,
	}

	set, err := st.SetMode(t.Context(), admin(), domain.Mode{Name: "pop_maintenance", Enabled: true, Reason: "moving"})
	require.NoError(t, err)
	listed, err := st.Modes(t.Context())
	require.NoError(t, err)
	_, err = st.SetMode(t.Context(), admin(), domain.Mode{Name: "pop_maintenance", Enabled: true, Reason: "as it was"})
	require.NoError(t, err)

	set.ChangedAt, listed[1].ChangedAt = set.ChangedAt.UTC(), listed[1].ChangedAt.UTC()
	require.Equal(t, want, set)
	require.Equal(t, []domain.Mode{{Name: "maintenance"}, want}, listed)
	require.Equal(t, []string{"default key:admin mode.set mode/pop_maintenance"}, audited(t, db))
	_, err = db.Exec(t.Context(), "DROP TABLE audit.outbox")
	require.NoError(t, err)
	_, err = st.SetMode(t.Context(), admin(), domain.Mode{Name: "maintenance", Enabled: true})
	require.Error(t, err)
	listed, err = st.Modes(t.Context())
	require.NoError(t, err)
	require.False(t, listed[0].Enabled, "it was set without its entry")
}
