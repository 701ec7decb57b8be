package engine_test

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/pgtest"
	queuev1 "postrider.dev/proto/gen/postrider/queue/v1"
	"postrider.dev/services/dispatcher/migrations"
)

const (
	million    = 1_000_000
	turnPops   = 100 // pops of one queue before it is the other's turn
	turns      = 7   // per queue
	mostRows   = 1.5 // rows and buffers of a pop beside a million partitions, times those beside ten
	mostTime   = 2.0 // the same of its median duration
	mostMemory = 400 << 20
)

// BenchmarkAMillionPartitions compares a pop that settles the one before on a queue of a million partitions with the same on a queue of ten that holds as
// much, turn by turn: what it costs PostgreSQL (pg_stat_statements) and how long it takes. It fails above what is promised.
func BenchmarkAMillionPartitions(b *testing.B) {
	for _, backlog := range []struct {
		name string
		each int // messages a partition
	}{{"one_message_each", 1}, {"backlog_of_three_each", 3}} {
		b.Run(backlog.name, func(b *testing.B) {
			url, stats := statements(b)
			n := newNode(b, url, nodeOptions{})
			n.pushMany("million", million*backlog.each, func(i int) string { return fmt.Sprintf("p%d", i%million) })
			n.pushMany("ten", million*backlog.each, func(i int) string { return fmt.Sprintf("p%d", i%10) })
			exec(b, stats, "VACUUM ANALYZE")
			pushed := heap()
			for _, batch := range []int{1, 100} {
				ten, all := newPopper(n, stats, "ten", batch), newPopper(n, stats, "million", batch)
				for range turns {
					ten.turn()
					all.turn()
				}
				report(b, batch, ten, all)
			}
			b.ReportMetric(float64(pushed>>20), "MiB/pushed")
			b.ReportMetric(float64(heap()>>20), "MiB/popped")
			b.ReportMetric(n.metric("view_bytes")/(1<<20), "MiB/views")
			require.Less(b, max(pushed, heap()), uint64(mostMemory), "bytes on the heap")
			n.stop()
		})
	}
}

// statements returns a migrated database on a server that syncs and counts what each statement costs, and a connection to read that.
func statements(b *testing.B) (url string, conn *pgx.Conn) {
	b.Helper()
	srv := pgtest.NewServer(b, localpg.Options{Durable: true, Settings: map[string]string{
		"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track_planning": "off", "max_wal_size": "4GB",
	}})
	url = srv.DSN("postgres")
	_, err := migrate.Up(b.Context(), clock.Real{}, url, migrations.Set())
	require.NoError(b, err)
	conn, err = pg.Connect(b.Context(), url, pg.Options{})
	require.NoError(b, err)
	b.Cleanup(func() { _ = conn.Close(b.Context()) })
	exec(b, conn, "CREATE EXTENSION pg_stat_statements")
	return url, conn
}

// popper pops from one queue, and notes what that costs.
type popper struct {
	n     *node
	stats *pgx.Conn
	queue string
	batch int
	lease string

	took          []time.Duration
	rows, buffers []float64 // a pop, of each turn
}

func newPopper(n *node, stats *pgx.Conn, queue string, batch int) *popper {
	p := &popper{n: n, stats: stats, queue: queue, batch: batch}
	for range 10 { // a first look is not what is measured
		p.pop()
	}
	return p
}

func (p *popper) pop() {
	req := &queuev1.PopRequest{Queue: p.queue, Batch: int32(p.batch), Wait: seconds(20)}
	if p.lease != "" {
		req.Settle = &queuev1.AckRequest{Lease: p.lease, AckRest: true}
	}
	resp := p.n.pop(req)
	require.Len(p.n.t, resp.GetDeliveries(), p.batch)
	p.lease = resp.GetLease()
}

func (p *popper) turn() {
	p.n.t.Helper()
	exec(p.n.t, p.stats, "SELECT pg_stat_statements_reset()")
	clk := clock.Real{}
	for range turnPops {
		began := clk.Now()
		p.pop()
		p.took = append(p.took, clk.Since(began))
	}
	var rows, buffers float64
	require.NoError(p.n.t, p.stats.QueryRow(p.n.t.Context(), `SELECT sum(rows), sum(shared_blks_hit + shared_blks_read)
		FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'`).Scan(&rows, &buffers))
	p.rows = append(p.rows, rows/turnPops)
	p.buffers = append(p.buffers, buffers/turnPops)
}

// median sorts what it is given.
func median[T float64 | time.Duration](all []T) T {
	slices.Sort(all)
	return all[len(all)/2]
}

// report compares the two, and fails the benchmark if more than what is promised is needed.
func report(b *testing.B, batch int, ten, all *popper) {
	b.Helper()
	rows, buffers := median(all.rows)/median(ten.rows), median(all.buffers)/median(ten.buffers)
	took := float64(median(all.took)) / float64(median(ten.took))
	b.Logf("batch %d: rows a pop %.1f (ten: %.1f), buffers %.1f (%.1f), p50 %v (%v)", batch,
		median(all.rows), median(ten.rows), median(all.buffers), median(ten.buffers), median(all.took), median(ten.took))
	b.ReportMetric(rows, fmt.Sprintf("rows×/batch=%d", batch))
	b.ReportMetric(buffers, fmt.Sprintf("buffers×/batch=%d", batch))
	b.ReportMetric(took, fmt.Sprintf("p50×/batch=%d", batch))
	if rows > mostRows || buffers > mostRows || took > mostTime {
		b.Errorf("batch %d: a pop beside a million partitions takes %.2f× the rows, %.2f× the buffers, %.2f× the time", batch, rows, buffers, took)
	}
}

// heap is what is in use after a collection.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
