package modes_test

import (
	"context"
	"errors"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/modes"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/run"
	"postrider.dev/pkg/run/runtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// stub is as much of the modes as a reader needs.
func stub() migrate.Set {
	return migrate.Set{Schema: "mesh", FS: fstest.MapFS{"0001_stub.sql": {Data: []byte(`-- +goose Up
CREATE TABLE mesh.rows (name text, enabled boolean, reason text);
-- +goose StatementBegin
CREATE FUNCTION mesh.modes() RETURNS SETOF mesh.rows LANGUAGE sql AS 'SELECT * FROM mesh.rows';
-- +goose StatementEnd
INSERT INTO mesh.rows VALUES ('maintenance', false, ''), ('pop_maintenance', true, 'moving'), ('siesta', true, 'of a later release');
`)}}}
}

func TestTheModesAreWhatTheDatabaseSays(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, stub())

	m, err := modes.Read(t.Context(), db)

	require.NoError(t, err)
	require.Equal(t, modes.Modes{PopMaintenance: modes.Mode{Enabled: true, Reason: "moving"}}, m)
}

func TestWhereNobodyHasMadeTheModesAllAreOff(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, migrate.Set{Schema: "other", FS: fstest.MapFS{"0001_none.sql": {Data: []byte("-- +goose Up\n")}}})

	m, err := modes.Read(t.Context(), db)

	require.NoError(t, err)
	require.Zero(t, m)
}

func TestADatabaseThatIsAwayIsNoModeThatIsOff(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, stub())
	ended, cancel := context.WithCancel(t.Context())
	cancel()

	_, err := modes.Read(ended, db)

	require.Error(t, err)
}

func TestAChangeIsSeenAfterAHintAndWithoutASidecarWithinASecondOrSo(t *testing.T) {
	t.Parallel()
	for name, hinted := range map[string]bool{"hinted": true, "without a sidecar": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, stub())
			env := runtest.New(t)
			w := modes.New(env, "test", time.Hour, func() bool { return hinted }, func(ctx context.Context) (modes.Modes, error) { return modes.Read(ctx, db) })
			runtest.Go(t, w.Run)
			before, err := w.Await(t.Context())
			require.NoError(t, err)
			require.True(t, before.PopMaintenance.Enabled)

			set(t, db)
			if hinted {
				w.Look()
			}

			runtest.Eventually(t, func() error {
				if m, _ := w.Current(); m.PopMaintenance.Enabled || !m.Maintenance.Enabled {
					return errors.New("the change is not seen")
				}
				return nil
			})
			require.Equal(t, map[string]float64{"maintenance": 1, "pop_maintenance": 0}, gauges(t, env))
		})
	}
}

func set(t *testing.T, db *pg.DB) {
	t.Helper()
	_, err := db.Exec(t.Context(), "UPDATE mesh.rows SET enabled = NOT enabled")
	require.NoError(t, err)
}

// gauges are the values of postrider_test_mode_enabled by mode.
func gauges(t *testing.T, env run.Env) map[string]float64 {
	t.Helper()
	families, err := env.Metrics.Gather()
	require.NoError(t, err)
	out := map[string]float64{}
	for _, family := range families {
		if family.GetName() == "postrider_test_mode_enabled" {
			for _, m := range family.GetMetric() {
				out[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	return out
}
