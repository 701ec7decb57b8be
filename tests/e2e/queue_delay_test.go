package e2e

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

// early is by how much a message came before it was old enough: 0 if it did not. The database of these tests shares the clock of the machine.
func early(d *postrider.Delivery, delay time.Duration) time.Duration {
	return max(0, delay-time.Since(d.CreatedAt))
}

func TestADelayOfAQueueHoldsOnBothHostsAndNotForSubscribers(t *testing.T) {
	t.Parallel()
	const delay = 2 * time.Second
	f := twoHosts(t)
	a, b := f.Client(t, 0), f.Client(t, 1)
	configured, err := a.Configure(t.Context(), "q", &queuev1.QueueOptions{Delay: durationpb.New(delay)})
	require.NoError(t, err)
	require.Equal(t, delay, configured.GetOptions().GetDelay().AsDuration())
	_, err = a.Configure(t.Context(), "q", &queuev1.QueueOptions{Delay: durationpb.New(16 * time.Minute)})
	require.Equal(t, "OUT_OF_RANGE", postrider.Code(err), "%v", err)
	l := listen(t, b, "q", postrider.SubscribeOptions{}, nil)
	count(t, a, "q", 0, 6, 3, 1)
	l.heard(t, 6)

	for i, c := range []*postrider.Client{a, b} {
		lease := mustPop(t, c, "q", postrider.PopOptions{Group: strconv.Itoa(i), Batch: 9})
		for _, d := range lease.Deliveries {
			require.Zero(t, early(d, delay), "host %d, message %s", i+1, d.Payload)
		}
	}
}

// Messages are pushed all the while, and the dispatcher that serves half of the consumers is killed.
func TestADelayOfAQueueIsNeverEarlyThoughADispatcherDies(t *testing.T) {
	t.Parallel()
	const delay, total = time.Second, 400
	p := fleet.StartProcesses(t, &binaries, 2)
	a, b := p.Client(t, 0, 1), p.Client(t, 1, 0)
	_, err := b.Configure(t.Context(), "q", &queuev1.QueueOptions{Delay: durationpb.New(delay)})
	require.NoError(t, err)
	pushed := make(chan error, 1)
	go func() {
		for i := range total {
			results, err := b.Push(t.Context(), "q", postrider.Message{
				Partition: "p" + strconv.Itoa(i%4), Payload: []byte(strconv.Itoa(i)), IdempotencyKey: strconv.Itoa(i),
			})
			if err == nil {
				err = results[0].Err
			}
			if err != nil {
				pushed <- err
				return
			}
		}
		pushed <- nil
	}()

	next, killed := map[string]int{}, false
	for came := 0; came < total; {
		c := []*postrider.Client{a, b}[came%2]
		lease, err := c.Pop(t.Context(), "q", postrider.PopOptions{Batch: 20, Lease: 2 * time.Second, Wait: patience})
		if err != nil || lease == nil {
			continue // its dispatcher is away: what was granted comes again
		}
		for _, d := range lease.Deliveries {
			require.Zero(t, early(d, delay), "message %s", d.Payload)
			n, err := strconv.Atoi(string(d.Payload))
			require.NoError(t, err)
			require.Equal(t, next[d.Partition], n/4, "order in %s", d.Partition)
			next[d.Partition]++
			came++
		}
		_, err = lease.Ack(t.Context())
		require.NoError(t, err)
		if !killed && came > total/4 {
			killed = true
			p.Hosts[0].Dispatcher.Kill()
		}
	}
	require.NoError(t, <-pushed)
	require.True(t, killed)
}
