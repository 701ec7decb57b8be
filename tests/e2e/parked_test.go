package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"postrider.dev/pkg/pg"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

// parkedPops counts the parked pops of all hosts.
func parkedPops(t *testing.T, f *fleet.Fleet) int {
	t.Helper()
	n := 0
	for _, h := range f.Hosts {
		n += int(metric(t, h, "postrider_dispatcher_parked_pops"))
	}
	return n
}

// awaitParked waits until so many pops are parked.
func awaitParked(t *testing.T, f *fleet.Fleet, want int) {
	t.Helper()
	eventually(t, func() error {
		if n := parkedPops(t, f); n != want {
			return fmt.Errorf("%d pops are parked, not %d", n, want)
		}
		return nil
	})
}

func TestAPopWhoseClientIsGoneTakesNothing(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Configure(t.Context(), "orders", &queuev1.QueueOptions{MaxAttempts: new(int32(1))})
	require.NoError(t, err)
	for round := range 5 {
		leaving, leave := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := a.Pop(leaving, "orders", postrider.PopOptions{Wait: 50 * time.Second})
			gone <- err
		}()
		awaitParked(t, f, 1)

		leave()
		require.Error(t, <-gone)
		awaitParked(t, f, 0)
		mustPush(t, a, "orders", "p", strconv.Itoa(round))

		lease := mustPop(t, b, "orders", postrider.PopOptions{})
		require.Equal(t, 1, lease.Deliveries[0].Attempt)
		_, err := lease.Ack(t.Context())
		require.NoError(t, err)
	}
}

func TestAnAnswerThatCannotBeDeliveredIsHandedOutAgainAtOnceAndUncharged(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Configure(t.Context(), "big", &queuev1.QueueOptions{MaxAttempts: new(int32(1))})
	require.NoError(t, err)
	const messages = 24
	for i := range messages {
		mustPush(t, a, "big", fmt.Sprint("p", i), strings.Repeat("x", 1<<20-100))
	}

	for range 2 { // more often than there are attempts
		conn := popAndDoNotRead(t, f.Hosts[0], "big", messages)
		eventually(t, func() error {
			none, err := b.Pop(t.Context(), "big", postrider.PopOptions{Batch: 1})
			if err != nil || none == nil {
				return err
			}
			return fmt.Errorf("a message is not leased to the client that does not read: %w", none.Release(t.Context()))
		})
		began := time.Now()
		require.NoError(t, conn.Close()) // with unread bytes: a reset

		got := mustPop(t, b, "big", postrider.PopOptions{Batch: 1, Wait: 20 * time.Second})
		t.Logf("handed out again %s after the client was gone", time.Since(began).Round(time.Millisecond))
		require.Less(t, time.Since(began), 10*time.Second, "at once, and not when the hour's lease runs out")
		require.NoError(t, got.Release(t.Context()))
	}

	letters, err := a.Queue(t.Context(), "big")
	require.NoError(t, err)
	require.Zero(t, letters.GetQueue().GetDeadLetters(), "nobody was charged")
}

// popAndDoNotRead asks for more than fits into a connection's buffers, reads the first line of the answer, and leaves the rest.
func popAndDoNotRead(t *testing.T, h *fleet.Host, queue string, batch int) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(h.HTTP, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4096))
	body := fmt.Sprintf(`{"batch":%d,"max_bytes":%d,"wait":"20s","lease":"1h"}`, batch, 32<<20)
	_, err = fmt.Fprintf(conn, "POST /v1/queues/%s/pop HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		queue, fleet.AdminKey, len(body), body)
	require.NoError(t, err)
	status, err := bufio.NewReaderSize(conn, 16).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, status, strconv.Itoa(http.StatusOK))
	return conn
}

func TestAThousandParkedPopsOnIdleQueuesAskTheDatabaseLittle(t *testing.T) { //nolint:paralleltest // it needs the machine
	f := twoHosts(t)
	clients := []*postrider.Client{f.Client(t, 0), f.Client(t, 1)}
	const queues, pops = 50, 1000
	for q := range queues {
		_, err := clients[0].CreateGroup(t.Context(), fmt.Sprint("idle-", q), "default", nil)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var parked errgroup.Group
	for i := range pops {
		parked.Go(func() error {
			_, err := clients[i%2].Pop(ctx, fmt.Sprint("idle-", i%queues), postrider.PopOptions{Wait: 60 * time.Second})
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the end of the test
			}
			return fmt.Errorf("pop %d ended by itself: %w", i, err)
		})
	}
	defer func() {
		cancel()
		require.NoError(t, parked.Wait())
	}()
	awaitParked(t, f, pops)

	db := f.DB.Open(pg.Options{MaxConns: 1})
	before, began := transactions(t, db), time.Now()
	window := time.NewTimer(6 * time.Second) // the figure is a rate; it has no other fact to wait for
	defer window.Stop()
	<-window.C
	rate := float64(transactions(t, db)-before) / time.Since(began).Seconds()

	require.Equal(t, pops, parkedPops(t, f))
	t.Logf("%.1f transactions/s with %d parked pops on two hosts", rate, pops)
	require.Less(t, rate, 100.0, "20 queries/s is the aim, with heartbeats and housekeeping of two hosts beside; a thousand pollers would be hundreds")
}

// transactions counts what the database has done so far, as its statistics say.
func transactions(t *testing.T, db *pg.DB) int64 {
	t.Helper()
	var n int64
	require.NoError(t, db.QueryRow(t.Context(), "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()").Scan(&n))
	return n
}
