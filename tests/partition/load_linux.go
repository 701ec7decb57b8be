package partition

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/tests/hammer"
	"postrider.dev/tests/invariant"
)

const (
	queue = "orders"
	group = "billing"
	// lease bounds how long messages that were handed out to a client that never heard of it are kept from the others.
	lease = 3 * time.Second
	// drainPatience bounds how long what was pushed waits for being acked once the network is whole again.
	drainPatience = 40 * time.Second
)

// load is a producer and a consumer on every host, and what they saw.
type load struct {
	w         *world
	record    *hammer.Recorder
	stop      chan struct{}
	producers errgroup.Group
	consumers errgroup.Group
	consuming context.CancelFunc
}

// work starts a producer and a consumer on every host, and returns when every host has served its own: what a node has never seen it cannot serve alone.
// They talk to their own host alone, cut off or not.
func (w *world) work(t testing.TB) *load {
	t.Helper()
	_, err := w.hosts[0].client.Configure(t.Context(), queue, &queuev1.QueueOptions{
		MaxAttempts: new(int32(1000)), Backoff: durationpb.New(100 * time.Millisecond), BackoffMax: durationpb.New(time.Second),
	})
	require.NoError(t, err)
	l := &load{w: w, record: hammer.NewRecorder(), stop: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	l.consuming = cancel
	for n, h := range w.hosts {
		p := hammer.Produce{
			Queue: queue, Publisher: publisherAt(n), Batch: 4, Count: 1 << 40, Keyed: n%2 == 0, Every: 50 * time.Millisecond, Stop: l.stop,
			Partitions: []string{"a", "b", "c", "d", "e", "f", "g", "h"},
		}
		l.producers.Go(func() error { return p.Run(t.Context(), l.record, h.client) })
		c := hammer.Consume{Queue: queue, Group: group, Batch: 16, Lease: lease}
		l.consumers.Go(func() error { return c.Run(ctx, l.record, h.client) })
	}
	w.quietly(startPatience, func(context.Context) error {
		pushed := map[string]int{}
		for _, e := range l.record.Events() {
			if p, ok := e.(invariant.Push); ok {
				pushed[p.Publisher]++
			}
		}
		for n := range w.hosts {
			if pushed[publisherAt(n)] < 20 {
				return fmt.Errorf("host %d acknowledged %d pushes", n+1, pushed[publisherAt(n)])
			}
		}
		return nil
	})
	return l
}

func publisherAt(n int) string { return fmt.Sprintf("at-host-%d", n+1) }

// goesOn says that so many more messages are acked than now, soon: those who are not cut off work on.
func (l *load) goesOn(bound time.Duration, more int) {
	l.w.t.Helper()
	ctx, cancel := context.WithTimeout(l.w.t.Context(), bound)
	defer cancel()
	require.NoError(l.w.t, l.record.AwaitAcked(ctx, queue, group, l.record.Acked(queue, group)+more), "the others do not work on")
}

// spools says that pushes are acknowledged that are on a disk and not in the database, soon.
func (l *load) spools(bound time.Duration) {
	l.w.t.Helper()
	l.w.within(bound, "cut: its pushes go to its disk", func(context.Context) error {
		if l.buffered() == 0 {
			return errors.New("no push was acknowledged so")
		}
		return nil
	})
}

func (l *load) buffered() (n int) {
	for _, e := range l.record.Events() {
		if p, ok := e.(invariant.Push); ok && p.Buffered {
			n++
		}
	}
	return n
}

// end stops the producers, waits until everything is consumed, and checks the history.
func (l *load) end() {
	t := l.w.t
	t.Helper()
	close(l.stop)
	ctx, cancel := context.WithTimeout(t.Context(), drainPatience)
	defer cancel()
	began := time.Now()
	err := errors.Join(l.producers.Wait(), l.record.AwaitDrained(ctx, queue, group))
	l.consuming()
	require.NoError(t, errors.Join(err, l.consumers.Wait()))
	events := l.record.Events()
	t.Logf("drained after %.1f s; %d pushes acknowledged, %d of them onto a disk", time.Since(began).Seconds(), l.record.Pushed(queue), l.buffered())
	violations := invariant.All(events, invariant.Drained()...)
	for _, v := range violations[:min(5, len(violations))] {
		t.Error(v.String())
	}
	require.Empty(t, violations[min(5, len(violations)):], "and more")
}
