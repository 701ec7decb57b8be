package engine_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pgtest"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/migrations"
)

// durable returns the URL of a migrated database on a server that syncs.
func durable(b *testing.B) string {
	b.Helper()
	srv := pgtest.NewServer(b, localpg.Options{Durable: true})
	_, err := migrate.Up(b.Context(), clock.Real{}, srv.DSN("postgres"), migrations.Set())
	require.NoError(b, err)
	return srv.DSN("postgres")
}

// body is 256 random bytes: nothing to compress.
func body(r *rand.Rand) []byte {
	p := make([]byte, 256)
	for i := range p {
		p[i] = byte(r.Uint32())
	}
	return p
}

// BenchmarkPush measures durable pushes through the engine: callers that push batch messages each, again as soon as they are answered.
func BenchmarkPush(b *testing.B) {
	url := durable(b)
	for _, c := range []struct{ callers, batch int }{{1, 100}, {4, 100}, {16, 100}, {1, 1}, {64, 1}, {256, 1}} {
		b.Run(fmt.Sprintf("callers=%d/batch=%d", c.callers, c.batch), func(b *testing.B) {
			n := newNode(b, url, nodeOptions{})
			ctx := b.Context()
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			b.ResetTimer()
			for i := range c.callers {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(1, uint64(i)))
					items := make([]*queuev1.PushItem, c.batch)
					for j := range items {
						items[j] = &queuev1.PushItem{Partition: fmt.Sprintf("p%d", i), Payload: body(r)}
					}
					for left.Add(-int64(c.batch)) > -int64(c.batch) {
						if _, err := n.Push(ctx, ten, &queuev1.PushRequest{Queue: "q", Items: items}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
			n.stop()
		})
	}
}

// BenchmarkEndToEnd measures push, pop and ack together: producers and consumers of one queue, which is traced or not.
func BenchmarkEndToEnd(b *testing.B) {
	url := durable(b)
	for _, c := range []struct {
		workers, batch int
		traced         bool
	}{{4, 100, false}, {4, 100, true}, {32, 1, false}, {32, 1, true}} {
		b.Run(fmt.Sprintf("workers=%d/batch=%d/traced=%t", c.workers, c.batch, c.traced), func(b *testing.B) {
			n := newNode(b, url, nodeOptions{})
			queue := fmt.Sprintf("e%d-%t-%d", c.batch, c.traced, time.Now().UnixNano()) // a run leaves leases behind
			n.setQueue(url, queue, fmt.Sprintf(`{"trace": %t}`, c.traced))
			ctx := b.Context()
			var pushed, acked atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for i := range c.workers {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(1, uint64(i)))
					for pushed.Add(int64(c.batch)) <= int64(b.N)+int64(c.workers*c.batch) {
						items := make([]*queuev1.PushItem, c.batch)
						for j := range items {
							items[j] = &queuev1.PushItem{Partition: fmt.Sprintf("p%d", r.IntN(64)), Payload: body(r)}
						}
						if _, err := n.Push(ctx, ten, &queuev1.PushRequest{Queue: queue, Items: items}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			for range c.workers {
				wg.Go(func() {
					var lease string
					for acked.Load() < int64(b.N) {
						req := &queuev1.PopRequest{Queue: queue, Batch: int32(c.batch), Wait: seconds(0.2)}
						if lease != "" {
							req.Settle = &queuev1.AckRequest{Lease: lease, AckRest: true}
						}
						resp, err := n.Pop(ctx, ten, req)
						if err != nil {
							b.Error(err)
							return
						}
						lease = resp.GetLease()
						acked.Add(int64(len(resp.GetDeliveries())))
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			b.ReportMetric(float64(acked.Load())/b.Elapsed().Seconds(), "msg/s")
			for _, name := range []string{"work_commits_total", "polls_total", "wakes_total", "wake_misses_total", "flushes_total"} {
				b.ReportMetric(n.metric(name)/float64(b.N), name+"/msg")
			}
			n.stop()
		})
	}
}

// BenchmarkBesideAStuckPartition compares push, pop and ack of one message on a calm queue and on one with 50,000 messages behind a leased one, turn by
// turn. It fails above the promised 1.5.
func BenchmarkBesideAStuckPartition(b *testing.B) {
	n := newNode(b, durable(b), nodeOptions{})
	n.push("stuck", item("k", "first"))
	n.pop(&queuev1.PopRequest{Queue: "stuck", Lease: seconds(3600)})
	n.pushMany("stuck", 50_000, func(int) string { return "k" })
	const rounds = 5
	ratios := make([]float64, 0, rounds)
	for range rounds {
		calm, stuck := n.popsOther("calm", "stuck")
		ratios = append(ratios, float64(stuck)/float64(calm))
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[rounds/2], "stuck/calm")
	if ratios[rounds/2] > 1.5 {
		b.Errorf("a pop beside a stuck partition takes %.2f times as long as on a calm queue", ratios[rounds/2])
	}
}
