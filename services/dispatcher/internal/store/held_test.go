package store_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pg"
	"postrider.dev/pkg/run/runtest"
	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
	"postrider.dev/services/dispatcher/migrations"
)

const (
	heldWindow = 2 * time.Second
	heldSlow   = 4 // one in that many steps, the slowest, counts on neither side: it met something else. What is dead costs every step

	// A sweep walks the dead of its last seconds, once a second: what must hold is that it does not grow with the snapshot's age.
	sweepCeiling = 50 * time.Millisecond
)

// TestForeignSnapshotDoesNotSlowFlushAndWork works on two databases in turn, step by step and each first in turn, so that both meet the same noise. In one of
// them a transaction keeps its snapshot open all the time, as a backup does, so no dead row version of it can be cleaned away. It must not matter how
// long that lasts.
func TestForeignSnapshotDoesNotSlowFlushAndWork(t *testing.T) {
	t.Parallel()
	server := privateServer(t, false)
	calm, held := newLoad(t, server, "calm"), newLoad(t, server, "held")
	held.holdSnapshot()
	heldFor, floor := heldTime(t), runtest.Volume(0.8, 0.5) // of the calm rate

	var ratios [loadKinds][]float64
	var sweeps []time.Duration
	for began := time.Now(); time.Since(began) < heldFor; {
		for window := time.Now(); time.Since(window) < heldWindow; {
			first, second := calm, held
			if calm.steps%2 == 1 {
				first, second = held, calm
			}
			require.NoError(t, first.step(t.Context()))
			require.NoError(t, second.step(t.Context()))
		}
		a, b := calm.usual(), held.usual()
		sweeps = append(sweeps, b[kindSweep])
		for kind := range ratios {
			ratios[kind] = append(ratios[kind], float64(a[kind])/float64(b[kind]))
		}
	}

	for kind, all := range ratios {
		late := slices.Sorted(slices.Values(all[len(all)/2:])) // when most is dead
		median := late[len(late)/2]
		t.Logf("%-16s %6d steps, %.2f of the calm rate (first window %.2f)", loadNames[kind], held.steps, median, all[0])
		if kind != kindSweep && median < floor {
			t.Errorf("%s falls to %.2f of the calm rate: %.2f", loadNames[kind], median, all)
		}
	}
	late := slices.Sorted(slices.Values(sweeps[len(sweeps)/2:]))
	t.Logf("a sweep takes %v", late[len(late)/2])
	require.Less(t, late[len(late)/2], runtest.Bound(sweepCeiling))
}

// heldTime is how long the snapshot is held: 40 s, 8 s under the race detector, and what scripts/soak says.
func heldTime(t *testing.T) time.Duration {
	t.Helper()
	if text := os.Getenv("POSTRIDER_TEST_SNAPSHOT"); text != "" {
		d, err := time.ParseDuration(text)
		require.NoError(t, err)
		return d
	}
	return runtest.Volume(40*time.Second, 8*time.Second)
}

const (
	loadKinds = 5
	kindSweep = 4
)

var loadNames = [loadKinds]string{"flush", "work", "work under lock", "poll", "sweep"} //nolint:gochecknoglobals // a table

// load is one database with a shard that is pushed to and a group-shard that is worked on.
type load struct {
	t     testing.TB
	bench *bench
	shard message.ShardID
	head  message.Offset
	fast  *popper
	slow  lease.GroupShardID
	known window.Known
	steps int
	took  [loadKinds][]time.Duration // of each step of the window, by kind
}

func newLoad(t testing.TB, server *bench, name string) *load {
	t.Helper()
	server.exec("CREATE DATABASE " + name)
	cfg := server.db.Config().ConnConfig
	url := fmt.Sprintf("postgres://%s@/%s?host=%s&port=%d&sslmode=disable", cfg.User, name, cfg.Host, cfg.Port)
	_, err := migrate.Up(t.Context(), clock.Real{}, url, migrations.Set())
	require.NoError(t, err)
	b := benchOn(t, url)
	shard := b.shard()
	return &load{t: t, bench: b, shard: shard, fast: newPopper(b.groupShard(shard)), slow: b.groupShard(shard)}
}

// holdSnapshot opens a snapshot that lasts until the test ends.
func (l *load) holdSnapshot() {
	conn, err := pg.Connect(l.t.Context(), l.bench.url, pg.Options{AppName: "backup"})
	require.NoError(l.t, err)
	l.t.Cleanup(func() { _ = conn.Close(detached(l.t)) })
	_, err = conn.Exec(l.t.Context(), "BEGIN ISOLATION LEVEL REPEATABLE READ")
	require.NoError(l.t, err)
	_, err = conn.Exec(l.t.Context(), "SELECT count(*) FROM dispatcher.shards")
	require.NoError(l.t, err)
}

// step does each kind of work once and notes the time each took.
func (l *load) step(ctx context.Context) error {
	l.steps++
	for kind, do := range [loadKinds]func(context.Context) error{l.flush, l.work, l.locked, l.poll, l.sweep} {
		if kind >= 3 && l.steps%10 != 0 {
			continue
		}
		began := time.Now()
		if err := do(ctx); err != nil {
			return fmt.Errorf("%s: %w", loadNames[kind], err)
		}
		l.took[kind] = append(l.took[kind], time.Since(began))
	}
	return nil
}

// usual ends a window: it returns the mean time of each kind of step, the slowest quarter left out.
func (l *load) usual() (mean [loadKinds]time.Duration) {
	for kind, took := range l.took {
		slices.Sort(took)
		took = took[:len(took)-len(took)/heldSlow]
		for _, d := range took {
			mean[kind] += d
		}
		mean[kind] /= time.Duration(max(1, len(took)))
		l.took[kind] = l.took[kind][:0]
	}
	return mean
}

func (l *load) flush(ctx context.Context) error {
	a := appendOf(l.shard, 1, 2, 3)
	a.Known = l.head
	results, err := l.bench.store.Flush(ctx, []store.Append{a})
	if err == nil {
		l.head = results[0].Base + 3
	}
	return err
}

func (l *load) work(ctx context.Context) error { return l.fast.step(ctx, l.bench.store) }

func (l *load) locked(ctx context.Context) error {
	change, _, err := l.bench.store.WorkLocked(ctx, l.slow, l.known, func(s store.State) (window.Change, error) {
		c := grant(s)
		c.LeaseInserts[0].Lease = 2 * time.Second
		return c, nil
	})
	l.known = window.Known{Version: change.To}
	for _, granted := range change.LeaseInserts {
		l.known.Leases = append(l.known.Leases, granted.Epoch)
	}
	return err
}

func (l *load) poll(ctx context.Context) error {
	_, _, err := l.bench.store.Poll(ctx, map[message.ShardID]message.Offset{l.shard: l.head},
		map[window.GroupShardID]window.Version{l.fast.gs: l.fast.version, l.slow: l.known.Version})
	return err
}

func (l *load) sweep(ctx context.Context) error {
	_, err := l.bench.store.ExpiredLeases(ctx, 100)
	return err
}
