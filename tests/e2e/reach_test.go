package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	postrider "postrider.dev/sdk"
	"postrider.dev/tests/fleet"
)

const (
	reachEvery  = 10 * time.Millisecond // a message each
	reachParked = 8                     // pops that wait on the other host
)

// BenchmarkReachAcrossHosts measures how long a push on one host takes to reach a pop that is parked on another, and a subscriber there, by carrier of
// hints: 100 messages a second, from the instant each was due to be sent, real processes. POSTRIDER_TEST_REACH is how long each runs; 10 s.
func BenchmarkReachAcrossHosts(b *testing.B) {
	span := 10 * time.Second
	if text := os.Getenv("POSTRIDER_TEST_REACH"); text != "" {
		var err error
		span, err = time.ParseDuration(text)
		require.NoError(b, err)
	}
	for _, carrier := range []string{"tcp", "redis", "none"} {
		b.Run(carrier, func(b *testing.B) {
			p := fleet.StartProcessesWith(b, &binaries, fleet.ProcessOptions{
				Hosts: 2, Mesh: carrier == "tcp", Env: []string{"POSTRIDER_HINT_CARRIERS=" + carrier},
			})
			here, there := p.Client(b, 0), p.Client(b, 1)
			r := &reach{sent: make([]time.Time, int(span/reachEvery))}
			report(b, "popped", r.run(b, here, "popped", func(ctx context.Context) error { return r.pops(ctx, there, "popped") }))
			report(b, "subscribed", r.run(b, here, "subscribed", func(ctx context.Context) error {
				return there.Subscribe(ctx, "subscribed", func(_ context.Context, m *postrider.SubscribedMessage) error {
					return r.got(m.Payload)
				}, postrider.SubscribeOptions{OnReady: func(string) { r.ready.Done() }})
			}))
		})
	}
}

// reach is one measurement.
type reach struct {
	sent  []time.Time
	ready sync.WaitGroup

	mu    sync.Mutex // guards took
	took  []time.Duration
	heard chan struct{}
}

// run pushes numbered messages at a fixed rate, whatever becomes of them, and returns how long each took to get there.
func (r *reach) run(b *testing.B, c *postrider.Client, queue string, receive func(context.Context) error) []time.Duration {
	b.Helper()
	r.took, r.heard = nil, make(chan struct{})
	_, err := c.CreateGroup(b.Context(), queue, "default", nil)
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	received := make(chan error, 1)
	r.ready.Add(1)
	go func() { received <- receive(ctx) }()
	r.ready.Wait()
	var pushes errgroup.Group
	tick := time.NewTicker(reachEvery)
	defer tick.Stop()
	for i := range r.sent {
		r.sent[i] = <-tick.C
		pushes.Go(func() error {
			_, err := c.Push(b.Context(), queue, postrider.Message{Partition: strconv.Itoa(i), Payload: []byte(strconv.Itoa(i))})
			return err
		})
	}
	require.NoError(b, pushes.Wait())
	select {
	case <-r.heard:
	case <-time.After(patience):
		b.Fatalf("%d of %d messages came", len(r.took), len(r.sent))
	}
	cancel()
	require.NoError(b, <-received)
	return r.took
}

// got notes that a message has come.
func (r *reach) got(payload []byte) error {
	now := time.Now()
	i, err := strconv.Atoi(string(payload))
	if err != nil {
		return fmt.Errorf("a message of nobody: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took = append(r.took, now.Sub(r.sent[i]))
	if len(r.took) == len(r.sent) {
		close(r.heard)
	}
	return nil
}

// pops keeps some pops parked; each settles what the one before got.
func (r *reach) pops(ctx context.Context, c *postrider.Client, queue string) error {
	var parked errgroup.Group
	for range reachParked {
		parked.Go(func() error {
			for ctx.Err() == nil {
				lease, err := c.Pop(ctx, queue, postrider.PopOptions{Wait: 10 * time.Second})
				if ctx.Err() != nil {
					return nil //nolint:nilerr // the end of the measurement
				}
				if err != nil {
					return err
				}
				if lease == nil {
					continue
				}
				if err := r.got(lease.Deliveries[0].Payload); err != nil {
					return err
				}
				if _, err := lease.Ack(ctx); err != nil && ctx.Err() == nil {
					return err
				}
			}
			return nil
		})
	}
	r.ready.Done()
	return parked.Wait()
}

// report says how the durations are spread.
func report(b *testing.B, what string, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	at := func(share float64) float64 {
		return float64(took[int(share*float64(len(took)-1))].Microseconds()) / 1000
	}
	b.Logf("%s: p50 %.2f ms, p90 %.2f ms, p99 %.2f ms, most %.2f ms, of %d messages", what, at(0.5), at(0.9), at(0.99), at(1), len(took))
	b.ReportMetric(at(0.5), what+"-p50-ms")
	b.ReportMetric(at(0.99), what+"-p99-ms")
}
