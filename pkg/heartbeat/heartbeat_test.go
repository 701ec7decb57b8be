package heartbeat_test

import (
	"fmt"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/heartbeat"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pgtest"
	"postrider.dev/pkg/run/runtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// directory is as much of the node directory as a beat needs.
func directory() migrate.Set {
	return migrate.Set{Schema: "mesh", FS: fstest.MapFS{"0001_stub.sql": {Data: []byte(`-- +goose Up
CREATE TABLE mesh.beats (node jsonb);
-- +goose StatementBegin
CREATE FUNCTION mesh.announce(p_nodes jsonb) RETURNS int LANGUAGE sql AS 'INSERT INTO mesh.beats VALUES (p_nodes->0) RETURNING 1';
-- +goose StatementEnd
`)}}}
}

func node() heartbeat.Node {
	return heartbeat.Node{ID: "n", Host: "h", Zone: "z", Service: "audit", State: "online", Version: "v", Addresses: map[string]string{"admin": "a:1"}}
}

func TestABeatCarriesTheWholeNode(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, directory())

	require.NoError(t, heartbeat.Write(t.Context(), db, node()))

	var got heartbeat.Node
	require.NoError(t, db.QueryRow(t.Context(), "SELECT node FROM mesh.beats").Scan(&got))
	require.Equal(t, node(), got)
}

func TestWithoutADirectoryNothingIsWrittenAndThatIsNoError(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)

	require.NoError(t, heartbeat.Write(t.Context(), db, node()))
}

func TestAProcessAloneBeatsByItself(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, directory())
	beat := heartbeat.Alone(runtest.New(t), db, node)

	runtest.Go(t, beat.Run)

	require.Eventually(t, func() bool {
		var beats int
		return db.QueryRow(t.Context(), "SELECT count(*) FROM mesh.beats").Scan(&beats) == nil && beats > 0
	}, 30*time.Second, 20*time.Millisecond)
}

func TestAProcessThatDrainsSaysSoForGood(t *testing.T) {
	t.Parallel()
	var s heartbeat.State
	require.Equal(t, "online", s.String())

	s.Drain()

	require.Equal(t, "draining", s.String())
	require.Equal(t, "draining", fmt.Sprint(&s))
}
