package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/redistest"
	postrider "postrider.dev/sdk"
	"postrider.dev/stack"
	"postrider.dev/tests/fleet"
)

// told is what one client heard of its pushes of numbered messages over REST.
type told struct {
	accepted []string
	refused  map[string]bool
	next     int
}

// push pushes one large message at a host. What is refused must be 503 with a time to come back.
func (l *told) push(t *testing.T, h *fleet.Host) answer {
	t.Helper()
	content := fmt.Sprintf("%04d", l.next)
	l.next++
	body := fmt.Sprintf(`{"items":[{"partition":"p","payload":"%s","headers":{"content":"%s"}}]}`, strings.Repeat("x", 20_000), content)
	got := send(t, h, fleet.AdminKey, http.MethodPost, "/v1/queues/q/messages", body)
	if got.Status == http.StatusCreated || got.Status == http.StatusAccepted {
		l.accepted = append(l.accepted, content)
		return got
	}
	require.Equal(t, http.StatusServiceUnavailable, got.Status, got.Body)
	require.NotEmpty(t, got.Header.Get("Retry-After"))
	if l.refused == nil {
		l.refused = map[string]bool{}
	}
	l.refused[content] = true
	return got
}

// pushUntil pushes until an answer has the status, and the code if it is a refusal.
func (l *told) pushUntil(t *testing.T, h *fleet.Host, status int, code string) {
	t.Helper()
	eventually(t, func() error {
		if got := l.push(t, h); got.Status != status || got.code() != code {
			return fmt.Errorf("%d %s", got.Status, got.Body)
		}
		return nil
	})
}

// arrived pops everything: what was accepted came once, what was refused did not.
func (l *told) arrived(t *testing.T, c *postrider.Client) {
	t.Helper()
	var got []string
	for {
		lease, err := c.Pop(t.Context(), "q", postrider.PopOptions{Batch: 100, Wait: time.Second})
		require.NoError(t, err)
		if lease == nil {
			break
		}
		for _, d := range lease.Deliveries {
			got = append(got, d.Headers["content"])
		}
		_, err = lease.Ack(t.Context())
		require.NoError(t, err)
	}
	require.ElementsMatch(t, l.accepted, got)
	require.NotEmpty(t, l.refused)
}

func TestAFullDiskOfASpoolRefusesPushesWhileTheDatabaseIsAwayAndLosesNothing(t *testing.T) {
	t.Parallel()
	p := fleet.StartProcessesWith(t, &binaries, fleet.ProcessOptions{Hosts: 2, SmallSpools: true})
	full, other := &fleet.Host{HTTP: p.Hosts[0].HTTP}, &fleet.Host{HTTP: p.Hosts[1].HTTP}
	l := &told{}
	l.pushUntil(t, full, http.StatusCreated, "")
	l.pushUntil(t, other, http.StatusCreated, "")
	require.NoError(t, p.Postgres.Kill(t.Context()))
	l.pushUntil(t, full, http.StatusAccepted, "")
	l.pushUntil(t, other, http.StatusAccepted, "")

	require.NoError(t, p.Hosts[0].Disk.Fill(t.Context()))
	l.pushUntil(t, full, http.StatusServiceUnavailable, "SPOOL_DISK")
	require.Equal(t, http.StatusServiceUnavailable, l.push(t, full).Status)
	l.pushUntil(t, other, http.StatusAccepted, "") // another host has a disk of its own
	require.NoError(t, p.Hosts[0].Disk.Free(t.Context()))
	l.pushUntil(t, full, http.StatusAccepted, "") // there is room again

	require.NoError(t, p.Hosts[0].Disk.Fill(t.Context())) // and it is drained without any
	require.NoError(t, p.Postgres.Restart(t.Context()))
	client := p.Client(t, 0)
	eventually(t, func() error { return spoolsAreEmpty(t.Context(), client) })
	l.pushUntil(t, full, http.StatusCreated, "")
	l.arrived(t, client)
}

func TestAFullSpoolRefusesOnItsHostAloneUntilItIsDrained(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	f := fleet.Start(t, fleet.Options{Hosts: 2, RedisURL: redistest.Start(t).URL(), Change: func(n int, cfg *stack.Config) {
		readModesEvery(300*time.Millisecond)(n, cfg)
		cfg.Dispatcher.SpoolDir, cfg.Dispatcher.SpoolBytes = fmt.Sprintf("%s/host-%d", folder, n), 1<<20
	}})
	full, other := f.Hosts[0], f.Hosts[1]
	l := &told{}
	require.Equal(t, http.StatusCreated, l.push(t, full).Status)
	_, err := f.Client(t).SetMode(t.Context(), "maintenance", true, "upgrade")
	require.NoError(t, err)
	l.pushUntil(t, full, http.StatusAccepted, "")
	l.pushUntil(t, other, http.StatusAccepted, "")

	l.pushUntil(t, full, http.StatusServiceUnavailable, "SPOOL_FULL")
	require.Equal(t, http.StatusServiceUnavailable, l.push(t, full).Status, "and it stays full")
	require.Equal(t, http.StatusAccepted, l.push(t, other).Status, "the other's is not")
	_, err = f.Client(t).Push(t.Context(), "q", postrider.Message{Partition: "p", Payload: []byte("1"), Headers: map[string]string{"content": "of the SDK"}})
	require.NoError(t, err, "the SDK goes on to the host that has room")
	l.accepted = append(l.accepted, "of the SDK")

	_, err = f.Client(t).SetMode(t.Context(), "maintenance", false, "")
	require.NoError(t, err)
	l.pushUntil(t, full, http.StatusCreated, "")
	l.arrived(t, f.Client(t, 1))
	eventually(t, func() error { return spoolsAreEmpty(t.Context(), f.Client(t, 0)) })
}
