package store_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/clock"
	"postrider.dev/pkg/migrate"
	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
	"postrider.dev/services/dispatcher/migrations"
)

const (
	heldFor    = 40 * time.Second
	heldWindow = 2 * time.Second
	heldFloor  = 0.8 // of the calm rate

	// A sweep walks the dead of its last seconds, once a second: what must hold is that it does not grow with the snapshot's age.
	sweepCeiling = 50 * time.Millisecond
)

// TestForeignSnapshotDoesNotSlowFlushAndWork works on two databases in turn, step by step, so that both meet the same noise. In one of them a transaction keeps
// its snapshot open all the time, as a backup does, so no dead row version of it can be cleaned away.
func TestForeignSnapshotDoesNotSlowFlushAndWork(t *testing.T) {
	t.Parallel()
	server := privateServer(t, false)
	calm, held := newLoad(t, server, "calm"), newLoad(t, server, "held")
	held.holdSnapshot()

	var ratios [loadKinds][]float64
	var sweeps []time.Duration
	for began := time.Now(); time.Since(began) < heldFor; {
		var spent [2][loadKinds]time.Duration
		for window := time.Now(); time.Since(window) < heldWindow; {
			for i, load := range []*load{calm, held} {
				require.NoError(t, load.step(t.Context(), &spent[i]))
			}
		}
		sweeps = append(sweeps, spent[1][kindSweep]/time.Duration(max(1, held.sweeps)))
		held.sweeps = 0
		for kind := range ratios {
			ratios[kind] = append(ratios[kind], float64(spent[0][kind])/float64(spent[1][kind]))
		}
	}

	for kind, all := range ratios {
		late := slices.Sorted(slices.Values(all[len(all)/2:])) // when most is dead
		median := late[len(late)/2]
		t.Logf("%-16s %6d steps, %.2f of the calm rate (first window %.2f)", loadNames[kind], held.steps, median, all[0])
		if kind != kindSweep && median < heldFloor {
			t.Errorf("%s falls to %.2f of the calm rate: %.2f", loadNames[kind], median, all)
		}
	}
	late := slices.Sorted(slices.Values(sweeps[len(sweeps)/2:]))
	t.Logf("a sweep takes %v", late[len(late)/2])
	require.Less(t, late[len(late)/2], sweepCeiling)
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

	sweeps int // since the window began
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

// step does each kind of work once and adds up the time each took.
func (l *load) step(ctx context.Context, spent *[loadKinds]time.Duration) error {
	l.steps++
	for kind, do := range [loadKinds]func(context.Context) error{l.flush, l.work, l.locked, l.poll, l.sweep} {
		if kind >= 3 && l.steps%10 != 0 {
			continue
		}
		began := time.Now()
		if err := do(ctx); err != nil {
			return fmt.Errorf("%s: %w", loadNames[kind], err)
		}
		spent[kind] += time.Since(began)
	}
	return nil
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
	l.sweeps++
	_, err := l.bench.store.ExpiredLeases(ctx, 100)
	return err
}
