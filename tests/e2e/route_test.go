package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/stack"
	"postrider.dev/tests/fleet"
)

// routed is the queue of these stories.
const routed = "orders"

// awaitRoute waits until it is routed to a host (empty: to none that is online) at an epoch of at least this.
func awaitRoute(t *testing.T, c *postrider.Client, host string, epoch int64) *queuev1.Route {
	t.Helper()
	var r *queuev1.Route
	eventually(t, func() error {
		q, err := c.Queue(t.Context(), routed)
		if err != nil {
			return err
		}
		if r = q.GetRoute(); r.GetHostId() != host || r.GetEpoch() < epoch {
			return fmt.Errorf("it is routed to %v", r)
		}
		return nil
	})
	return r
}

// poppedOn pops and acks on a host until the dispatcher of the host served is the one that hands out; every message that was pushed is had.
func poppedOn(t *testing.T, f *fleet.Fleet, client, served int) {
	t.Helper()
	c := f.Client(t, client)
	const handed = "postrider_dispatcher_deliveries_total"
	eventually(t, func() error {
		before := metric(t, f.Hosts[served], handed)
		mustPush(t, c, routed, "p", "x")
		lease := mustPop(t, c, routed, postrider.PopOptions{})
		require.Equal(t, []string{"x"}, payloads(lease))
		if _, err := lease.Ack(t.Context()); err != nil {
			return err
		}
		if metric(t, f.Hosts[served], handed) == before {
			return errors.New("another host's dispatcher handed it out")
		}
		return nil
	})
}

func TestPopsOfEveryHostGoToTheHostThatHasSubscribersAndElsewhereWhenItGoes(t *testing.T) {
	t.Parallel()
	f := meshed(t, 2, func(_ int, cfg *stack.Config) {
		if hintsLost() {
			cfg.Ingress.RouteRefresh = 100 * time.Millisecond // else it would be found in a minute
		}
	})
	a, b := f.Client(t, 0), f.Client(t, 1)
	for _, queue := range []string{routed, routed + "/c/1", "producer/x"} {
		_, err := a.CreateGroup(t.Context(), queue, "default", nil)
		require.NoError(t, err)
	}
	poppedOn(t, f, 0, 0) // by its own: there is no route
	q, err := a.Queue(t.Context(), routed)
	require.NoError(t, err)
	require.Nil(t, q.GetRoute(), "a plain pop claims nothing")

	far := ignore(t, b, routed)
	require.EqualValues(t, 1, awaitRoute(t, a, "host-2", 1).GetEpoch())
	shown := send(t, f.Hosts[0], fleet.AdminKey, "GET", "/v1/queues/"+routed, "")
	require.Contains(t, shown.Body, `"host_id":"host-2"`)
	poppedOn(t, f, 0, 1)
	near := ignore(t, a, routed) // the first host that had one keeps it
	eventually(t, func() error { return haveSubscribed(t, a, routed, 2) })
	require.EqualValues(t, 1, awaitRoute(t, a, "host-2", 1).GetEpoch())
	for _, other := range []string{routed + "/c/1", "producer/x"} {
		q, err := a.Queue(t.Context(), other)
		require.NoError(t, err)
		require.Nil(t, q.GetRoute(), "it was taken for a registration")
	}

	require.NoError(t, far.stop())
	require.EqualValues(t, 2, awaitRoute(t, b, "host-1", 2).GetEpoch())
	poppedOn(t, f, 1, 0)
	require.NoError(t, near.stop())
	f.Hosts[0].Stop()
	awaitRoute(t, b, "", 2)
	poppedOn(t, f, 1, 1) // without a route that can be used, by its own again
}

// ignore subscribes and takes whatever comes.
func ignore(t *testing.T, c *postrider.Client, queue string) *listener {
	t.Helper()
	return listen(t, c, queue, postrider.SubscribeOptions{}, nil)
}

// haveSubscribed says whether so many subscriptions are counted.
func haveSubscribed(t *testing.T, c *postrider.Client, queue string, n int64) error {
	t.Helper()
	q, err := c.Queue(t.Context(), queue)
	if err == nil && q.GetQueue().GetSubscribers() != n {
		err = fmt.Errorf("%d subscribers", q.GetQueue().GetSubscribers())
	}
	return err
}
