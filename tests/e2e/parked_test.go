package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

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

// idleTime is how long idle pops are watched. The figure is a rate; it has no other fact to wait for.
const idleTime = 30 * time.Second

func TestAThousandPopsParkedOnAThousandIdleQueuesCostAlmostNothing(t *testing.T) {
	t.Parallel()
	const pops = 1000
	p := fleet.StartProcesses(t, &binaries, 2)
	clients := []*postrider.Client{p.Client(t, 0), p.Client(t, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	var making, parked errgroup.Group
	making.SetLimit(16) // a thousand at a time would wait for one another longer than a busy machine lets a request wait
	for i := range pops {
		making.Go(func() error {
			_, err := clients[0].CreateGroup(ctx, fmt.Sprint("idle-", i), "default", nil)
			return err
		})
	}
	require.NoError(t, making.Wait())
	for i := range pops {
		parked.Go(func() error {
			for ctx.Err() == nil { // a long poll lasts a minute at most
				if _, err := clients[i%2].Pop(ctx, fmt.Sprint("idle-", i), postrider.PopOptions{Wait: 60 * time.Second}); err != nil && ctx.Err() == nil {
					return err
				}
			}
			return nil
		})
	}
	defer func() {
		cancel()
		require.NoError(t, parked.Wait())
	}()
	eventually(t, func() error {
		n := 0.0
		for _, h := range p.Hosts {
			n += metricAt(t, h.Dispatcher.Admin, "postrider_dispatcher_parked_pops")
		}
		if n != pops {
			return fmt.Errorf("%v pops are parked", n)
		}
		return nil
	})

	before := idleCost(t, p)
	window := time.NewTimer(idleTime)
	defer window.Stop()
	<-window.C
	after := idleCost(t, p)

	queries := (after.statements - before.statements) / idleTime.Seconds()
	t.Logf("%.1f queries/s of two hosts", queries)
	require.Less(t, queries, 20.0)
	for name, used := range after.cpu {
		cores := (used - before.cpu[name]) / idleTime.Seconds()
		t.Logf("%.2f %% of a core in %s", 100*cores, name)
		require.Less(t, cores, 0.02, name)
	}
}

// cost is what processes have used so far.
type cost struct {
	cpu        map[string]float64 // seconds, of each process
	statements float64            // of all
}

// idleCost is what ingresses and dispatchers have used; the sidecars' heartbeats are apart.
func idleCost(t *testing.T, p *fleet.Processes) cost {
	t.Helper()
	c := cost{cpu: map[string]float64{}}
	for _, h := range p.Hosts {
		for _, proc := range []*fleet.Process{h.Ingress, h.Dispatcher} {
			c.cpu[proc.Name] = metricAt(t, proc.Admin, "process_cpu_seconds_total")
		}
		c.statements += metricAt(t, h.Ingress.Admin, "postrider_ingress_db_pool_statements_total") +
			metricAt(t, h.Dispatcher.Admin, "postrider_dispatcher_db_pool_statements_total") +
			metricAt(t, h.Dispatcher.Admin, "postrider_dispatcher_control_db_pool_statements_total")
	}
	return c
}

func TestOneMessageForAThousandPopsParkedOnTwoHostsIsClaimedAtMostTwiceByEach(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	clients := []*postrider.Client{f.Client(t, 0), f.Client(t, 1)}
	_, err := clients[0].CreateGroup(t.Context(), "herd", "default", nil)
	require.NoError(t, err)
	const pops = 1000
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan *postrider.Lease, pops)
	var parked errgroup.Group
	for i := range pops {
		parked.Go(func() error {
			lease, err := clients[i%2].Pop(ctx, "herd", postrider.PopOptions{Wait: 60 * time.Second})
			if lease != nil {
				served <- lease
			}
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the end of the test
			}
			return err
		})
	}
	defer func() {
		cancel()
		require.NoError(t, parked.Wait())
	}()
	awaitParked(t, f, pops)
	before := [2]float64{claims(t, f.Hosts[0]), claims(t, f.Hosts[1])}

	mustPush(t, clients[0], "herd", "p", "one")
	lease := <-served
	polled := metric(t, f.Hosts[1], "postrider_dispatcher_polls_total")
	eventually(t, func() error { // the other host has heard of it too, one way or another
		if metric(t, f.Hosts[1], "postrider_dispatcher_polls_total") < polled+2 {
			return errors.New("the other host has not looked")
		}
		return nil
	})

	require.Equal(t, []string{"one"}, payloads(lease))
	awaitParked(t, f, pops-1)
	for i, h := range f.Hosts {
		require.LessOrEqual(t, claims(t, h)-before[i], 2.0, "host %d", i+1)
	}
}

// claims counts the statements by which a dispatcher tried to hand out messages.
func claims(t *testing.T, h *fleet.Host) float64 {
	t.Helper()
	return metric(t, h, "postrider_dispatcher_work_commits_total") + metric(t, h, "postrider_dispatcher_work_lost_total") +
		metric(t, h, "postrider_dispatcher_work_not_yet_total")
}
