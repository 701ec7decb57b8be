package e2e

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"postrider.dev/pkg/redistest"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

// listener is a subscriber that expects the numbers from 0 on, each once and in order.
type listener struct {
	cancel context.CancelFunc
	ended  chan error
	ready  chan struct{}
	slow   func(n int) // called with each number before it is taken

	mu    sync.Mutex // guards the rest
	next  int
	wrong error
	codes []string // of what it got over
}

// listen subscribes until the test ends, or stop.
func listen(t *testing.T, c *postrider.Client, queue string, opts postrider.SubscribeOptions, slow func(int)) *listener {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	l := &listener{cancel: cancel, ended: make(chan error, 1), ready: make(chan struct{}), slow: slow}
	var once sync.Once
	opts.OnReady = func(string) { once.Do(func() { close(l.ready) }) }
	opts.OnError = func(err error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.codes = append(l.codes, postrider.Code(err))
	}
	go func() { l.ended <- c.Subscribe(ctx, queue, l.take, opts) }()
	t.Cleanup(func() { require.NoError(t, l.stop()) })
	select {
	case <-l.ready:
	case <-time.After(patience):
		t.Fatal("the subscription does not stand")
	}
	return l
}

func (l *listener) stop() error {
	l.cancel()
	err := <-l.ended
	l.ended <- err
	return err
}

func (l *listener) take(_ context.Context, m *postrider.SubscribedMessage) error {
	if l.slow != nil {
		number, _ := strconv.Atoi(strings.TrimSpace(string(m.Payload)))
		l.slow(number)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if got := strings.TrimSpace(string(m.Payload)); got != strconv.Itoa(l.next) && l.wrong == nil {
		l.wrong = fmt.Errorf("got %s at offset %d, not %d", got, m.Offset, l.next)
	}
	l.next++
	return nil
}

// heard waits until the listener has had n numbers, exactly.
func (l *listener) heard(t *testing.T, n int) {
	t.Helper()
	eventually(t, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.wrong == nil && l.next != n {
			return fmt.Errorf("%d messages have come, not %d", l.next, n)
		}
		return nil
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	require.NoError(t, l.wrong)
	require.Equal(t, n, l.next)
}

// count pushes the numbers from first to end-1 as one publisher, in requests of batch.
func count(t *testing.T, c *postrider.Client, queue string, first, end, batch, padding int) {
	t.Helper()
	for at := first; at < end; at += batch {
		messages := make([]postrider.Message, min(batch, end-at))
		for i := range messages {
			messages[i] = postrider.Message{
				Partition: fmt.Sprint("p", (at+i)%7), Payload: []byte(fmt.Sprintf("%-*d", padding, at+i)), IdempotencyKey: strconv.Itoa(at + i),
			}
		}
		results, err := c.Push(t.Context(), queue, messages...)
		require.NoError(t, err)
		for _, r := range results {
			require.NoError(t, r.Err)
		}
	}
}

func TestAPublishOnOneHostReachesSubscribersOfBothInOrderAlsoWithRedisStopped(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	f := fleet.Start(t, fleet.Options{Hosts: 2, RedisURL: redis.URL()})
	a, b := f.Client(t, 0), f.Client(t, 1)
	near, far := listen(t, a, "news", postrider.SubscribeOptions{Echo: true}, nil), listen(t, b, "news", postrider.SubscribeOptions{}, nil)

	count(t, a, "news", 0, 50, 1, 0)
	near.heard(t, 50)
	far.heard(t, 50)
	redis.Stop()
	count(t, a, "news", 50, 100, 1, 0)
	near.heard(t, 100)
	far.heard(t, 100)

	whole := listen(t, b, "news", postrider.SubscribeOptions{From: "earliest"}, nil)
	whole.heard(t, 100)
}

func TestFiftySubscribersOnTwoHostsGetEveryMessageInOrder(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	clients := []*postrider.Client{f.Client(t, 0), f.Client(t, 1)}
	var all []*listener
	for i := range 50 {
		all = append(all, listen(t, clients[i%2], "fan", postrider.SubscribeOptions{Echo: true}, nil))
	}
	eventually(t, func() error {
		q, err := clients[1].Queue(t.Context(), "fan")
		if n := q.GetQueue().GetSubscribers(); err != nil || n != 50 {
			return fmt.Errorf("inspection counts %d subscribers, not 50: %w", n, err)
		}
		return nil
	})

	const total = 4000
	began := time.Now()
	count(t, clients[0], "fan", 0, total, 100, 256)

	for _, l := range all {
		l.heard(t, total)
	}
	t.Logf("%.0f deliveries/s, with all hosts and clients in this process", float64(len(all)*total)/time.Since(began).Seconds())
	for _, l := range all {
		require.NoError(t, l.stop())
	}
	eventually(t, func() error {
		q, err := clients[0].Queue(t.Context(), "fan")
		if n := q.GetQueue().GetSubscribers(); err != nil || n != 0 {
			return fmt.Errorf("inspection counts %d subscribers, not 0: %w", n, err)
		}
		return nil
	})
}

func TestWhenTheHostOfASubscriberIsKilledItGoesOnElsewhereWithoutLossOrRepeat(t *testing.T) {
	t.Parallel()
	p := fleet.StartProcesses(t, &binaries, 2)
	publisher := p.Client(t, 1)
	l := listen(t, p.Client(t, 0, 1), "orders", postrider.SubscribeOptions{}, nil)
	count(t, publisher, "orders", 0, 500, 5, 0)
	l.heard(t, 500)

	var pushing errgroup.Group
	pushing.Go(func() error {
		count(t, publisher, "orders", 500, 1500, 5, 0)
		return nil
	})
	for _, proc := range []*fleet.Process{p.Hosts[0].Ingress, p.Hosts[0].Dispatcher, p.Hosts[0].Sidecar} {
		proc.Kill()
	}

	require.NoError(t, pushing.Wait())
	l.heard(t, 1500)
	require.NotEmpty(t, l.codes, "it noticed")
}

func TestADrainingHostSendsItsSubscribersOnWithoutLossOrRepeat(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	publisher := f.Client(t, 1)
	l := listen(t, f.Client(t, 0, 1), "orders", postrider.SubscribeOptions{}, nil)
	count(t, publisher, "orders", 0, 100, 5, 0)

	f.Hosts[0].Stop()
	count(t, publisher, "orders", 100, 200, 5, 0)

	l.heard(t, 200)
	require.Contains(t, l.codes, "DRAINING")
}

func TestASlowSubscriberIsClosedWithItsPlaceAndResumesExactlyThere(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	publisher := f.Client(t, 0)
	_, err := publisher.Configure(t.Context(), "firehose", &queuev1.QueueOptions{MaxMessageBytes: new(int32(1 << 20))})
	require.NoError(t, err)
	stuck, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	slow := listen(t, f.Client(t, 1), "firehose", postrider.SubscribeOptions{}, func(n int) {
		if n == 10 {
			once.Do(func() { close(stuck) })
			<-release
		}
	})
	fast := listen(t, f.Client(t, 1), "firehose", postrider.SubscribeOptions{}, nil)

	count(t, publisher, "firehose", 0, 20, 1, 0)
	<-stuck
	events := func() float64 { return metric(t, f.Hosts[1], "postrider_ingress_subscription_events_total") }
	total := 20
	for full := false; !full; { // until what the slow one does not read fills all that is on the way to it, while it is not behind
		before := unchanged(t, 100*time.Millisecond, events)
		count(t, publisher, "firehose", total, total+50, 50, 16<<10)
		total += 50
		fast.heard(t, total)
		full = unchanged(t, 200*time.Millisecond, events) < before+100 && unchanged(t, 1200*time.Millisecond, events) < before+100 // see SlowAfter
	}
	count(t, publisher, "firehose", total, total+1000, 100, 16<<10) // more than a host keeps at hand
	total += 1000
	fast.heard(t, total)
	close(release)

	slow.heard(t, total)
	require.Contains(t, slow.codes, "SLOW")
	require.Empty(t, fast.codes)
}

// unchanged waits until what is read has been the same for so long, and returns it. What is asked here is a matter of time itself.
func unchanged(t *testing.T, long time.Duration, read func() float64) float64 {
	t.Helper()
	last, since := read(), time.Now()
	require.Eventually(t, func() bool {
		if now := read(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > long
	}, time.Minute, 20*time.Millisecond)
	return last
}

func TestASubscriberDoesNotHearItself(t *testing.T) {
	t.Parallel()
	f := twoHosts(t)
	me, you := f.Client(t, 0), f.Client(t, 1)
	var got []string
	done := errors.New("done")
	ready := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- me.Subscribe(t.Context(), "room", func(_ context.Context, m *postrider.SubscribedMessage) error {
			if got = append(got, string(m.Payload)); len(got) == 2 {
				return done
			}
			return nil
		}, postrider.SubscribeOptions{OnReady: func(string) { close(ready) }})
	}()
	<-ready

	for i := range 2 {
		mustPush(t, me, "room", "p", fmt.Sprint("mine ", i))
		mustPush(t, you, "room", "p", fmt.Sprint("yours ", i))
	}

	require.ErrorIs(t, <-ended, done)
	require.Equal(t, []string{"yours 0", "yours 1"}, got)
}
