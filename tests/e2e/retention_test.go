package e2e

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

func TestALaggingGroupIsToldWhatRetentionTookOnEitherHost(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Configure(t.Context(), "clicks", &queuev1.QueueOptions{Retention: durationpb.New(time.Second)})
	require.NoError(t, err)
	_, err = a.CreateGroup(t.Context(), "clicks", "slow", &queuev1.GroupOptions{})
	require.NoError(t, err)
	for i := range 3 {
		mustPush(t, a, "clicks", "p", strconv.Itoa(i))
	}
	eventually(t, func() error { // something newer comes, and then the old ones go
		mustPush(t, a, "clicks", "p", "new")
		q, err := b.Queue(t.Context(), "clicks")
		if err != nil {
			return err
		}
		if q.GetQueue().GetDropped() < 3 {
			return errors.New("nothing was dropped yet")
		}
		return nil
	})

	lease := mustPop(t, b, "clicks", postrider.PopOptions{Group: "slow", Batch: 1000})
	q, err := a.Queue(t.Context(), "clicks")
	require.NoError(t, err)

	require.Len(t, lease.Trimmed, 1)
	require.GreaterOrEqual(t, lease.Trimmed[0].GetMessages(), int64(3))
	require.GreaterOrEqual(t, lease.Trimmed[0].GetFirstAvailable(), int64(3))
	require.Equal(t, "new", string(lease.Deliveries[0].Payload))
	g := q.GetGroups()[0]
	require.GreaterOrEqual(t, g.GetTrimmed(), lease.Trimmed[0].GetMessages())
	require.GreaterOrEqual(t, g.GetFirstAvailable()[0], int64(3))
	require.False(t, g.GetExpired())
}

func TestAFullQueueAnswers429OnBothHostsAndReopens(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	_, err := a.Configure(t.Context(), "jobs", &queuev1.QueueOptions{
		RetentionSettled: new(true), MaxQueueBytes: new(int64(4000)), MaxQueueMessages: new(int64(50)),
	})
	require.NoError(t, err)
	noise := func() string { // hardly becomes smaller by compression
		raw := make([]byte, 800)
		_, _ = rand.Read(raw)
		return hex.EncodeToString(raw)
	}
	push := func(c *postrider.Client) error {
		results, err := c.Push(t.Context(), "jobs", postrider.Message{Partition: "p", Payload: []byte(noise())})
		if err != nil {
			return err
		}
		return results[0].Err
	}
	eventually(t, func() error {
		if push(a) == nil {
			return errors.New("not full yet")
		}
		return nil
	})

	for i, c := range []*postrider.Client{a, b} {
		require.Equal(t, "QUEUE_FULL", postrider.Code(push(c)))
		resp := send(t, f.Hosts[i], fleet.AdminKey, http.MethodPost, "/v1/queues/jobs/messages",
			fmt.Sprintf(`{"items": [{"payload": %q}, {"payload": %q}]}`, noise(), noise()))
		require.Equal(t, http.StatusTooManyRequests, resp.Status, resp.Body)
		require.NotEmpty(t, resp.Header.Get("Retry-After"))
	}
	mustPush(t, b, "another", "p", "is not harmed")
	lease := mustPop(t, b, "jobs", postrider.PopOptions{Batch: 100})
	_, err = lease.Ack(t.Context(), lease.Deliveries...)
	require.NoError(t, err)

	for _, c := range []*postrider.Client{a, b} {
		eventually(t, func() error { return push(c) })
		lease := mustPop(t, a, "jobs", postrider.PopOptions{Batch: 100})
		_, err = lease.Ack(t.Context(), lease.Deliveries...)
		require.NoError(t, err)
	}
}

func TestKillingTheTrimmingDispatcherLosesNothingAboveTheTail(t *testing.T) {
	t.Parallel()
	p := fleet.StartProcesses(t, &binaries, 2, "POSTRIDER_DISPATCHER_TRIM_EVERY=50ms")
	a, b := p.Client(t, 0, 1), p.Client(t, 1, 0)
	_, err := a.Configure(t.Context(), "q", &queuev1.QueueOptions{RetentionSettled: new(true)})
	require.NoError(t, err)
	const messages = 2000
	producing, stop := context.WithTimeout(t.Context(), 2*patience)
	defer stop()
	pushed := make(chan error, 1)
	go func() {
		for i := range messages / 10 {
			batch := make([]postrider.Message, 10)
			for j := range batch {
				batch[j] = postrider.Message{
					Partition: strconv.Itoa(j), Payload: []byte(strconv.Itoa(10*i + j)), IdempotencyKey: strconv.Itoa(10*i + j),
				}
			}
			if _, err := a.Push(producing, "q", batch...); err != nil {
				pushed <- err
				return
			}
		}
		pushed <- nil
	}()
	d := p.Hosts[0].Dispatcher
	seen := map[string]bool{}
	for len(seen) < messages && producing.Err() == nil {
		lease, err := b.Pop(producing, "q", postrider.PopOptions{Batch: 50, Wait: time.Second, Lease: 2 * time.Second})
		require.NoError(t, err)
		if lease == nil {
			continue
		}
		for _, m := range lease.Deliveries {
			seen[string(m.Payload)] = true
		}
		require.Empty(t, lease.Trimmed, "nothing goes that is not settled")
		_, _ = lease.Ack(producing, lease.Deliveries...) // if it is lost, they come again
		if n := len(seen); d != nil && n > messages/3 {
			d.Kill()
			d.Start(t)
			d.AwaitReady(t)
			d = nil
		}
	}

	require.NoError(t, <-pushed)
	require.Len(t, seen, messages)
	eventually(t, func() error {
		q, err := a.Queue(t.Context(), "q")
		if err != nil {
			return err
		}
		if q.GetShards()[0].GetTail() == 0 || q.GetQueue().GetDropped() != 0 {
			return fmt.Errorf("tail %d, dropped %d", q.GetShards()[0].GetTail(), q.GetQueue().GetDropped())
		}
		return nil
	})
}
