package store_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/localpg"
	"postrider.dev/pkg/migrate"
	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
	"postrider.dev/services/dispatcher/migrations"
)

// privateServer runs a server of its own for one test or benchmark.
func privateServer(t testing.TB, durable bool) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("", "store")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	server, err := localpg.Start(t.Context(), clock.Real{}, localpg.Options{Dir: filepath.Join(dir, "pg"), Durable: durable, SharedBuffers: "256MB", Settings: map[string]string{"autovacuum_naptime": "3s"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(detached(t))) })
	_, err = migrate.Up(t.Context(), clock.Real{}, server.DSN("postgres"), migrations.Set())
	require.NoError(t, err)
	return benchOn(t, server.DSN("postgres"))
}

// frames256 are 256 messages of 256 random bytes.
func frames256() []segment.Frame {
	frames := make([]segment.Frame, 256)
	for i := range frames {
		payload := make([]byte, 256)
		_, _ = rand.Read(payload)
		frames[i] = segment.Frame{Hash: uint64(i), Bytes: message.AppendFrame(nil, &message.Message{Partition: "p", Payload: payload})}
	}
	return frames
}

// BenchmarkFlush commits segments of 256 messages of 256 bytes, one after the other, with fsync on.
func BenchmarkFlush(b *testing.B) {
	bench := privateServer(b, true)
	encoder, err := segment.NewEncoder(1)
	require.NoError(b, err)
	frames := frames256()
	encoded, _, err := encoder.Build(frames)
	require.NoError(b, err)
	for _, withCodec := range []bool{false, true} {
		name := map[bool]string{false: "encoded before", true: "encoding included"}[withCodec]
		b.Run(name, func(b *testing.B) {
			shard := bench.shard()
			var known message.Offset
			messages := 0
			for b.Loop() {
				if withCodec {
					encoded, _, err = encoder.Build(frames)
					require.NoError(b, err)
				}
				results, err := bench.store.Flush(b.Context(), []store.Append{{Shard: shard, Known: known, FlushID: flushID(), Encoded: encoded}})
				require.NoError(b, err)
				known = results[0].Base + message.Offset(results[0].Count)
				messages += len(frames)
			}
			b.ReportMetric(float64(messages)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}

// BenchmarkWork commits the ack of one lease of 100 messages together with the pop of the next, one after the other, with fsync on.
func BenchmarkWork(b *testing.B) {
	bench := privateServer(b, true)
	b.Run("pop 1 and ack 1 of 128 groups", func(b *testing.B) {
		shard := bench.shard()
		workers := make([]*popper, store.MaxWork)
		for i := range workers {
			workers[i] = newPopper(bench.groupShard(shard))
			workers[i].entries = make([]byte, 12)
		}
		changes := make([]window.Change, len(workers))
		for b.Loop() {
			for i, worker := range workers {
				changes[i] = worker.change()
				worker.version++
			}
			_, err := bench.store.Work(b.Context(), changes)
			require.NoError(b, err)
		}
		b.ReportMetric(float64(len(workers)*b.N)/b.Elapsed().Seconds(), "changes/s")
	})
	b.Run("64 leases of 1 in one change", func(b *testing.B) {
		gs := bench.groupShard(bench.shard())
		version := window.Version(1)
		var last []window.Epoch
		for b.Loop() {
			c := window.Change{ID: gs, From: version, To: version + 1, LeaseLow: version, LeaseDeletes: last}
			last = nil
			for i := range 64 {
				epoch := lease.MakeEpoch(c.To, uint16(i))
				c.LeaseInserts = append(c.LeaseInserts, window.LeaseInsert{Epoch: epoch, Lease: 30 * time.Second, Holder: "consumer", Entries: make([]byte, 12)})
				last = append(last, epoch)
			}
			results, err := bench.store.Work(b.Context(), []window.Change{c})
			require.NoError(b, err)
			require.True(b, results[0].Applied)
			version++
		}
		b.ReportMetric(64*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	})
	b.Run("pop 100 and ack 100", func(b *testing.B) {
		gs := bench.groupShard(bench.shard())
		worker := newPopper(gs)
		for b.Loop() {
			require.NoError(b, worker.step(b.Context(), bench.store))
		}
		b.ReportMetric(100*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
	})
}

// popper is the smallest engine there is: each change settles the lease before and grants the next.
type popper struct {
	gs      lease.GroupShardID
	version window.Version
	entries []byte
}

func newPopper(gs lease.GroupShardID) *popper {
	return &popper{gs: gs, version: 1, entries: make([]byte, 120)}
}

func (p *popper) change() window.Change {
	c := window.Change{ID: p.gs, From: p.version, To: p.version + 1, Low: window.Offset(100 * p.version), LeaseLow: p.version}
	c.Hot.Chunk = 3
	c.LeaseInserts = []window.LeaseInsert{{Epoch: lease.MakeEpoch(c.To, 0), Lease: 30 * time.Second, Holder: "consumer", Entries: p.entries}}
	if p.version > 1 {
		c.LeaseDeletes = []window.Epoch{lease.MakeEpoch(p.version, 0)}
	}
	return c
}

func (p *popper) step(ctx context.Context, s *store.Store) error {
	results, err := s.Work(ctx, []window.Change{p.change()})
	if err != nil {
		return err
	}
	if !results[0].Applied {
		return errLostRace
	}
	p.version++
	return nil
}

var errLostRace = errors.New("lost a race against nobody")
