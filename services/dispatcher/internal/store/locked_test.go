package store_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

// grant is a change that takes back every lease there is and grants one that carries the version it was made by.
func grant(state store.State) window.Change {
	c := window.Change{ID: state.Row.ID, From: state.Row.Version, To: state.Row.Version + 1, Hot: state.Row.Hot, LeaseLow: state.Row.Version + 1}
	for _, l := range state.Leases {
		c.LeaseDeletes = append(c.LeaseDeletes, l.Epoch)
	}
	c.LeaseInserts = []window.LeaseInsert{{Epoch: lease.MakeEpoch(c.To, 0), Lease: time.Minute}}
	return c
}

// waitUntilBlocked returns when a session of the test's database waits for a row.
func waitUntilBlocked(b *bench) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		return scan[int](b, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	}, 5*time.Second, time.Millisecond)
}

// Locking and reading in one statement would give the new version with the old leases: the snapshot is older than the wait.
func TestWhoWaitedForTheLockReadsTheLeasesOfTheVersionItGot(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	gs := b.groupShard(b.shard())
	_, other := b.open(nil)
	locked, proceed := make(chan struct{}), make(chan struct{})
	var seen store.State

	var group errgroup.Group
	group.Go(func() error {
		_, _, err := b.store.WorkLocked(t.Context(), gs, window.Known{}, func(s store.State) (window.Change, error) {
			close(locked)
			<-proceed
			return grant(s), nil
		})
		return err
	})
	<-locked
	group.Go(func() error {
		_, _, err := other.WorkLocked(t.Context(), gs, window.Known{}, func(s store.State) (window.Change, error) {
			seen = s
			return window.Change{}, nil
		})
		return err
	})
	waitUntilBlocked(b)
	close(proceed)
	require.NoError(t, group.Wait())

	require.EqualValues(t, 2, seen.Row.Version)
	require.Len(t, seen.Leases, 1)
	require.Equal(t, lease.MakeEpoch(2, 0), seen.Leases[0].Epoch)
}

// Fast and slow changes of several processes race; at every version the lease read is the one that version granted.
func TestNoStateReadIsTorn(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	gs := b.groupShard(b.shard())
	const workers, rounds = 3, 150

	var group errgroup.Group
	for i := range workers {
		_, s := b.open(nil)
		group.Go(func() error {
			known := window.Known{}
			whole := func(state store.State) {
				if v := state.Row.Version; v > 1 && (len(state.Leases) != 1 || state.Leases[0].Epoch.Version() != v) {
					t.Errorf("version %d with leases %v", v, state.Leases)
				}
				known = window.Known{Version: state.Row.Version}
				for _, l := range state.Leases {
					known.Leases = append(known.Leases, l.Epoch)
				}
			}
			for round := range rounds {
				if (round+i)%3 == 0 {
					if _, _, err := s.WorkLocked(t.Context(), gs, known, func(state store.State) (window.Change, error) {
						whole(state)
						return grant(state), nil
					}); err != nil {
						return err
					}
					continue
				}
				state, err := s.Refresh(t.Context(), gs, known)
				if err != nil {
					return err
				}
				whole(state)
				if _, err := s.Work(t.Context(), []window.Change{grant(state)}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())

	require.GreaterOrEqual(t, scan[int](b, "SELECT version FROM dispatcher.group_shards"), workers*rounds/3)
	require.Equal(t, 1, scan[int](b, "SELECT count(*) FROM dispatcher.leases"))
}

func TestDecisionUnderTheLockMayBeNothingOrAnError(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	gs := b.groupShard(b.shard())
	refused := errors.New("refused")

	_, nothing, err := b.store.WorkLocked(t.Context(), gs, window.Known{}, func(s store.State) (window.Change, error) {
		return window.Change{ID: gs, From: s.Row.Version, To: s.Row.Version}, nil
	})
	require.NoError(t, err)
	_, _, err = b.store.WorkLocked(t.Context(), gs, window.Known{}, func(store.State) (window.Change, error) { return window.Change{}, refused })
	require.ErrorIs(t, err, refused)
	_, _, err = b.store.WorkLocked(t.Context(), 999, window.Known{}, func(store.State) (window.Change, error) { return window.Change{}, nil })
	require.ErrorIs(t, err, store.ErrGone)
	change, early, err := b.store.WorkLocked(t.Context(), gs, window.Known{Version: 77}, func(s store.State) (window.Change, error) {
		c := grant(s)
		c.NotBefore = s.Now.Add(time.Hour)
		return c, nil
	})
	require.NoError(t, err)

	require.False(t, nothing.Applied)
	require.NotZero(t, nothing.Now)
	require.True(t, early.Early(&change))
	require.EqualValues(t, 1, scan[int64](b, "SELECT version FROM dispatcher.group_shards"))
	require.True(t, apply(b, window.Change{ID: gs, From: 1, To: 2})[0].Applied, "no lock is left behind")
}

func TestRefusedDecisionLeavesTheConnectionUsable(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	gs := b.groupShard(b.shard())
	ctx, cancel := context.WithCancel(t.Context())

	_, _, err := b.store.WorkLocked(ctx, gs, window.Known{}, func(store.State) (window.Change, error) {
		cancel()
		return window.Change{}, context.Canceled
	})

	require.ErrorIs(t, err, context.Canceled)
	require.EqualValues(t, 1, b.db.Stat().TotalConns(), "rolled back, not thrown away")
	require.Zero(t, scan[int](b, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"))
}
