package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

func TestKilledSidecarsCostWakeLatencyAndNothingElse(t *testing.T) { //nolint:paralleltest // it needs the machine
	p := fleet.StartProcesses(t, &binaries, 2)
	a, b := p.Client(t, 0), p.Client(t, 1)
	mustPush(t, a, "news", "p", "before")
	for _, h := range p.Hosts {
		h.Sidecar.Kill()
	}

	conn, err := pgx.Connect(t.Context(), p.Postgres.DSN("postgres"))
	require.NoError(t, err)
	defer conn.Close(t.Context()) //nolint:errcheck // the test ends
	eventually(t, func() error {  // the services beat for themselves once their sidecar has been silent
		var online, stale int
		if err := conn.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE state = 'online'),
			count(*) FILTER (WHERE heartbeat_at < now() - interval '4 seconds') FROM mesh.directory() WHERE service IN ('ingress', 'dispatcher')`,
		).Scan(&online, &stale); err != nil {
			return err
		}
		if online != 4 || stale != 0 {
			return fmt.Errorf("%d of 4 nodes are online, %d have an old heartbeat", online, stale)
		}
		return nil
	})
	require.Equal(t, []string{"before"}, payloads(mustPop(t, b, "news", postrider.PopOptions{Lease: time.Minute})))
	_, err = b.CreateGroup(t.Context(), "news", "second", &queuev1.GroupOptions{Start: "latest"})
	require.NoError(t, err)
	served := parkedPop(t, b, "news", postrider.PopOptions{Group: "second"})
	eventually(t, func() error {
		if n := metricAt(t, p.Hosts[1].Dispatcher.Admin, "postrider_dispatcher_parked_pops"); n != 1 {
			return fmt.Errorf("%v pops are parked", n)
		}
		return nil
	})
	mustPush(t, a, "news", "p", "after")
	lease, _ := served()
	require.Equal(t, []string{"after"}, payloads(lease))
}
