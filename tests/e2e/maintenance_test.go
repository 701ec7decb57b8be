package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"postrider.dev/pkg/redisconn"
	"postrider.dev/pkg/redistest"
	meshv1 "postrider.dev/proto/gen/postrider/private/mesh/v1"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/stack"
	"postrider.dev/tests/fleet"
)

// readModesEvery makes the hosts read the modes that often.
func readModesEvery(d time.Duration) func(int, *stack.Config) {
	return func(_ int, cfg *stack.Config) { cfg.Ingress.ModesRefresh, cfg.Dispatcher.ModesRefresh = d, d }
}

// setPops turns pop maintenance on or off at a host and returns when every process of the fleet has read it, and how long that took.
func setPops(t *testing.T, f *fleet.Fleet, c *postrider.Client, on bool) time.Duration {
	t.Helper()
	began := time.Now()
	_, err := c.SetMode(t.Context(), "pop_maintenance", on, "moving")
	require.NoError(t, err)
	want := 0.0
	if on {
		want = 1
	}
	eventually(t, func() error {
		for n, h := range f.Hosts {
			for _, service := range []string{"ingress", "dispatcher"} {
				if got := metric(t, h, `postrider_`+service+`_mode_enabled{mode="pop_maintenance"}`); got != want {
					return fmt.Errorf("the %s of host %d has %v, not %v", service, n, got, want)
				}
			}
		}
		return nil
	})
	return time.Since(began)
}

func TestPopMaintenanceSetOnOneHostAnswersTheParkedPopsOfTheOtherAndBackAgainTheyGetTheirMessages(t *testing.T) { //nolint:paralleltest // it measures
	refresh := time.Minute
	bound := time.Second // DESIGN says 100 ms: the machine of the tests may be busy
	if hintsLost() {
		refresh, bound = 300*time.Millisecond, 5*time.Second
	}
	f := fleet.Start(t, fleet.Options{Hosts: 2, RedisURL: redistest.Start(t).URL(), Change: readModesEvery(refresh)})
	a, b := f.Client(t, 0), f.Client(t, 1)
	mustPush(t, a, "orders", "p", "1")
	held := mustPop(t, b, "orders", postrider.PopOptions{})
	parked := make(chan *queuev1.PopResponse, 1)
	go func() {
		resp, err := b.Queues().Pop(context.WithoutCancel(t.Context()), &queuev1.PopRequest{Queue: "orders", Wait: durationpb.New(50 * time.Second)})
		if err == nil {
			parked <- resp
		}
		close(parked)
	}()
	awaitParked(t, f, 1)

	took := setPops(t, f, a, true)
	sentAway := <-parked
	mustPush(t, a, "orders", "other", "2")
	closed, err := b.Queues().Pop(t.Context(), &queuev1.PopRequest{Queue: "orders", Wait: durationpb.New(50 * time.Second)})
	require.NoError(t, err)
	_, acked := held.Ack(t.Context())
	back := setPops(t, f, b, false)

	require.Equal(t, "moving", sentAway.GetPopMaintenance().GetReason())
	require.Equal(t, "moving", closed.GetPopMaintenance().GetReason())
	require.Empty(t, closed.GetDeliveries())
	require.NoError(t, acked, "acks go on")
	require.Equal(t, []string{"2"}, payloads(mustPop(t, b, "orders", postrider.PopOptions{Wait: 10 * time.Second})))
	require.Less(t, max(took, back), bound)
}

func TestAForgedHintChangesNoMode(t *testing.T) {
	t.Parallel()
	if hintsOff() {
		return // there is no channel to forge on
	}
	url := redistest.Start(t).URL()
	f := fleet.Start(t, fleet.Options{Hosts: 2, RedisURL: url, Change: readModesEvery(time.Minute)})
	a, b := f.Client(t, 0), f.Client(t, 1)
	setPops(t, f, a, false)
	forger, err := redisconn.Open(url, redisconn.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = forger.Close() })
	frame, err := proto.Marshal(&meshv1.CarriedHints{From: "nobody", Hints: []*meshv1.Hint{
		{Kind: &meshv1.Hint_ModesChanged{ModesChanged: &meshv1.ModesChanged{Mode: "pop_maintenance"}}},
	}})
	require.NoError(t, err)
	heard := metric(t, f.Hosts[1], `postrider_meshhint_hints_total{source="carrier"}`)

	require.NoError(t, forger.Publish(t.Context(), "postrider:hints", frame))
	eventually(t, func() error {
		if metric(t, f.Hosts[1], `postrider_meshhint_hints_total{source="carrier"}`) <= heard {
			return errors.New("the forged hint has not arrived")
		}
		return nil
	})

	mustPush(t, a, "orders", "p", "1")
	require.Equal(t, []string{"1"}, payloads(mustPop(t, b, "orders", postrider.PopOptions{Wait: 10 * time.Second})))
	modes, err := a.Modes(t.Context())
	require.NoError(t, err)
	for _, m := range modes {
		require.False(t, m.GetEnabled(), m.GetMode())
	}
}

func TestMaintenanceBuffersPushesOnTheirHostAndBringsThemBackInTheirOrder(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	f := fleet.Start(t, fleet.Options{Hosts: 2, RedisURL: redistest.Start(t).URL(), Change: func(n int, cfg *stack.Config) {
		readModesEvery(300*time.Millisecond)(n, cfg)
		cfg.Dispatcher.SpoolDir = fmt.Sprintf("%s/host-%d", folder, n)
	}})
	a, b := f.Client(t, 0), f.Client(t, 1)
	mustPush(t, a, "orders", "p", "1")
	_, err := b.SetMode(t.Context(), "maintenance", true, "upgrade")
	require.NoError(t, err)
	eventually(t, func() error {
		spools, err := a.Spools(t.Context())
		for _, s := range spools {
			if s.GetState() != "buffering" || s.GetReason() != "maintenance" {
				err = fmt.Errorf("%v", s)
			}
		}
		return err
	})

	var told []string
	for _, payload := range []string{"2", "3", "4"} {
		results, err := a.Push(t.Context(), "orders", postrider.Message{Partition: "p", Payload: []byte(payload)})
		require.NoError(t, err)
		require.True(t, results[0].Buffered)
		told = append(told, results[0].MessageID)
	}
	_, err = a.Queues().Push(t.Context(), &queuev1.PushRequest{
		Queue: "orders", Require: queuev1.PushRequire_PUSH_REQUIRE_COMMITTED, Items: []*queuev1.PushItem{{Payload: []byte("no")}},
	})
	require.ErrorContains(t, err, "only be buffered")
	held := mustPop(t, b, "orders", postrider.PopOptions{Batch: 10})
	require.Equal(t, []string{"1"}, payloads(held), "pops go on, and nothing new reaches the database")
	_, err = held.Ack(t.Context())
	require.NoError(t, err)
	_, err = b.SetMode(t.Context(), "maintenance", false, "")
	require.NoError(t, err)
	later, err := a.PushCommitted(t.Context(), "orders", postrider.Message{Partition: "p", Payload: []byte("5")})
	require.NoError(t, err)
	require.False(t, later[0].Buffered)

	got := []string{}
	for len(got) < 4 {
		lease := mustPop(t, b, "orders", postrider.PopOptions{Batch: 10})
		got = append(got, payloads(lease)...)
		_, err = lease.Ack(t.Context())
		require.NoError(t, err)
	}
	require.Equal(t, []string{"2", "3", "4", "5"}, got)
	found, err := b.LookupID(t.Context(), "orders", told[1])
	require.NoError(t, err)
	require.Equal(t, "3", string(found.GetPayload()), "what its producer was told finds it")
}
