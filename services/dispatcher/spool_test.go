package dispatcher_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pg"
	dispatcherv1 "postrider.dev/proto/gen/postrider/private/dispatcher/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	dispatcher "postrider.dev/services/dispatcher"
)

// fleetModes stands for the sidecar's modes, whose own tests are elsewhere.
const fleetModes = `CREATE SCHEMA mesh;
	CREATE TABLE mesh.flags (name text, enabled bool, reason text);
	INSERT INTO mesh.flags VALUES ('maintenance', false, ''), ('pop_maintenance', false, '');
	CREATE FUNCTION mesh.modes() RETURNS TABLE (name text, enabled bool, reason text) LANGUAGE sql AS 'SELECT * FROM mesh.flags'`

// awaitStatus pushes until a push is answered so.
func (w *wire) awaitStatus(payload string, want queuev1.PushStatus) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		w.send(push(payload))
		return w.receive().GetPush().GetResults()[0].GetStatus() == want
	}, 30*time.Second, 50*time.Millisecond)
}

func ackRest(lease string) *dispatcherv1.Operation {
	return &dispatcherv1.Operation{Op: &dispatcherv1.Operation_Ack{Ack: &queuev1.AckRequest{Queue: "q", Lease: lease, AckRest: true}}}
}

// everything pops and acks until nothing is ready.
func (w *wire) everything() (payloads []string) {
	w.t.Helper()
	for {
		w.send(pop(200 * time.Millisecond))
		got := w.receive().GetPop()
		if got.GetLease() == "" {
			return payloads
		}
		for _, d := range got.GetDeliveries() {
			payloads = append(payloads, string(d.GetPayload()))
		}
		w.send(ackRest(got.GetLease()))
		w.receive()
	}
}

func TestAServiceBuffersWhileItsFleetIsInMaintenanceAndDrainsAfterARestart(t *testing.T) {
	t.Parallel()
	db := database(t)
	flags := db.Open(pg.Options{})
	set := func(mode string, on bool) {
		t.Helper()
		_, err := flags.Exec(t.Context(), "UPDATE mesh.flags SET enabled = $2 WHERE name = $1", mode, on)
		require.NoError(t, err)
	}
	_, err := flags.Exec(t.Context(), fleetModes)
	require.NoError(t, err)
	dir := t.TempDir()
	spooling := func(c *dispatcher.Config) { c.SpoolDir, c.ModesRefresh = dir, 300*time.Millisecond }
	env, stop := start(t, db.URL(), spooling)
	w := dial(t, env)
	w.awaitStatus("before", queuev1.PushStatus_PUSH_STATUS_QUEUED)
	set("pop_maintenance", true)
	require.Eventually(t, func() bool {
		w.send(&dispatcherv1.Operation{Op: &dispatcherv1.Operation_Pop{Pop: &queuev1.PopRequest{Queue: "q", Partition: "nobody's"}}})
		return w.receive().GetPop().GetPopMaintenance() != nil
	}, 30*time.Second, 50*time.Millisecond)
	w.send(push("the other mode"))
	require.Equal(t, queuev1.PushStatus_PUSH_STATUS_QUEUED, w.receive().GetPush().GetResults()[0].GetStatus())
	set("pop_maintenance", false)

	set("maintenance", true)
	w.awaitStatus("kept", queuev1.PushStatus_PUSH_STATUS_BUFFERED)
	require.Eventually(t, func() bool { // what came in before the mode was read
		got := w.everything()
		return len(got) > 0 && got[0] == "before"
	}, 30*time.Second, 50*time.Millisecond)
	w.cancel()
	require.NoError(t, stop())
	set("maintenance", false)
	env, _ = start(t, db.URL(), spooling)
	w = dial(t, env)

	require.Eventually(t, func() bool {
		got := w.everything()
		require.LessOrEqual(t, len(got), 1, "once")
		return len(got) == 1 && got[0] == "kept"
	}, 30*time.Second, 50*time.Millisecond)
	w.awaitStatus("after", queuev1.PushStatus_PUSH_STATUS_QUEUED)
}
