package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/redistest"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
	"postrider.dev/tests/hintfault"
)

// parkedPop starts a pop that finds nothing and returns a function that waits for what it gets.
func parkedPop(t *testing.T, c *postrider.Client, queue string, o postrider.PopOptions) func() (*postrider.Lease, time.Time) { //nolint:unparam // a caller reads better with it
	t.Helper()
	type answer struct {
		lease *postrider.Lease
		err   error
		at    time.Time
	}
	done := make(chan answer, 1)
	o.Wait = 30 * time.Second
	go func() {
		lease, err := c.Pop(t.Context(), queue, o)
		done <- answer{lease, err, time.Now()}
	}()
	return func() (*postrider.Lease, time.Time) {
		t.Helper()
		a := <-done
		require.NoError(t, a.err)
		require.NotNil(t, a.lease, "the parked pop was never served")
		return a.lease, a.at
	}
}

func TestAPushToANewPartitionIsFoundByAPopParkedOnTheOtherHost(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.CreateGroup(t.Context(), "news", "default", nil)
	require.NoError(t, err)
	served := parkedPop(t, b, "news", postrider.PopOptions{})

	sent := time.Now()
	mustPush(t, a, "news", "brand-new", "extra")

	lease, at := served()
	require.Equal(t, []string{"extra"}, payloads(lease))
	t.Logf("served %s after the push began (hints: %s)", at.Sub(sent).Round(time.Millisecond), hints())
}

func TestWithRedisStoppedAParkedPopIsServedByTheRepollAndWakesResumeWhenItReturns(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	f := fleet.Start(t, fleet.Options{Hosts: 2, RedisURL: redis.URL()})
	a, b := f.Client(t, 0), f.Client(t, 1)
	redis.Stop()

	served := parkedPop(t, b, "news", postrider.PopOptions{})
	mustPush(t, a, "news", "p1", "without redis")
	lease, _ := served()
	require.Equal(t, []string{"without redis"}, payloads(lease))

	redis.Restart()
	if hintsOff() || hintfault.FromEnv() == hintfault.Drop {
		return // there is no wake to resume
	}
	eventually(t, func() error { // the subscription comes back within its backoff
		before := metric(t, f.Hosts[1], `postrider_meshhint_hints_total{source="carrier"}`)
		served := parkedPop(t, b, "news", postrider.PopOptions{})
		mustPush(t, a, "news", "p2", "with redis")
		lease, _ := served()
		if _, err := lease.Ack(t.Context()); err != nil {
			return err
		}
		if after := metric(t, f.Hosts[1], `postrider_meshhint_hints_total{source="carrier"}`); after <= before {
			return fmt.Errorf("no hint came from the other host: %v", after)
		}
		return nil
	})
}

func TestAParkedPopEndsAtOnceWhenItsHostDrainsAndTheClientGoesOnElsewhere(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	b := f.Client(t, 1)
	_, err := b.CreateGroup(t.Context(), "news", "default", nil)
	require.NoError(t, err)
	served := parkedPop(t, f.Client(t, 0, 1), "news", postrider.PopOptions{})
	eventually(t, func() error {
		if n := metric(t, f.Hosts[0], "postrider_dispatcher_parked_pops"); n != 1 {
			return fmt.Errorf("%v pops are parked", n)
		}
		return nil
	})

	began := time.Now()
	f.Hosts[0].Stop()
	require.Less(t, time.Since(began), 10*time.Second, "a parked pop held the drain up")
	mustPush(t, b, "news", "p", "moved")

	lease, _ := served()
	require.Equal(t, []string{"moved"}, payloads(lease))
}
