package store_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

// behindProxy opens a store whose way to the database leads through a proxy.
func (b *bench) behindProxy() (*store.Store, *proxy) {
	b.t.Helper()
	cfg, err := pgx.ParseConfig(b.url)
	require.NoError(b.t, err)
	p := newProxy(b.t, func(ctx context.Context) (net.Conn, error) {
		network, addr := pgNetwork(cfg)
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	})
	_, s := b.open(func(o *pg.Options) {
		o.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", p.listener.Addr().String())
		}
	})
	return s, p
}

func pgNetwork(cfg *pgx.ConnConfig) (network, addr string) {
	if cfg.Host[0] == '/' {
		return "unix", fmt.Sprintf("%s/.s.PGSQL.%d", cfg.Host, cfg.Port)
	}
	return "tcp", net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port)))
}

// everyCut runs one act against a fresh subject with the connection cut at each of its messages in each way. act does the thing once, finds out what became
// of it if told that nobody knows, and repeats it if it did not happen; then verify looks that it happened exactly once, also when what was late
// has arrived.
func everyCut(t *testing.T, prepare func(*bench) (act func(*store.Store) error, verify func() error)) {
	t.Helper()
	b := newBench(t)
	s, p := b.behindProxy()
	warm := func() int { // statements are prepared, so that messages are the same each time
		act, verify := prepare(b)
		p.arm(0, 0)
		require.NoError(t, act(s))
		require.NoError(t, verify())
		n, _ := p.count()
		return n
	}
	warm()
	messages := warm()
	require.Positive(t, messages)
	unknown := 0

	for n := 1; n <= messages; n++ {
		for how := cutBefore; how <= cutSplitEnd; how++ {
			warm()
			act, verify := prepare(b)
			p.arm(n, how)
			err := act(s)
			_, did := p.count()
			require.True(t, did, "message %d of %d was not sent", n, messages)
			require.NoError(t, err, "cut %d at message %d", how, n)
			require.NoError(t, verify(), "cut %d at message %d", how, n)
			p.deliver()
			require.NoError(t, b.settle(), "cut %d at message %d", how, n)
			require.NoError(t, verify(), "cut %d at message %d, late", how, n)
			unknown++
		}
	}
	t.Logf("%d messages, %d cuts", messages, unknown)
}

// settle waits until no session works in the database.
func (b *bench) settle() error {
	deadline := time.Now().Add(10 * time.Second)
	for time.Now().Before(deadline) {
		if scan[int](b, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
			AND (state <> 'idle' OR wait_event IS DISTINCT FROM 'ClientRead') AND backend_type = 'client backend'`) == 0 {
			return nil
		}
	}
	return fmt.Errorf("sessions still work: %s", scan[string](b, `SELECT string_agg(state || ' ' || query, ', ') FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid()`))
}

func TestFlushCutOffAtCommitIsNeitherLostNorDoubled(t *testing.T) {
	t.Parallel()
	everyCut(t, func(b *bench) (func(*store.Store) error, func() error) {
		shard := b.shard()
		a := appendOf(shard, 1, 2)
		act := func(s *store.Store) error {
			for range 5 {
				_, err := s.Flush(b.t.Context(), []store.Append{a})
				if err == nil {
					return nil
				}
				if !pg.IsOutcomeUnknown(err) {
					return fmt.Errorf("a cut in its only message leaves the outcome open: %w", err)
				}
				found, ok, err := s.FindFlush(b.t.Context(), []store.Sought{{Shard: shard, FlushID: a.FlushID}})
				if err != nil {
					return err
				}
				if ok {
					if found[0].Base != 0 || found[0].Count != 2 || found[0].CreatedAt.IsZero() {
						return fmt.Errorf("found %+v", found[0])
					}
					return nil
				}
			}
			return errNeverDone
		}
		return act, func() error { return b.expect(2, 1, shard, a.FlushID) }
	})
}

var errNeverDone = errors.New("never done")

// expect checks a shard's head and that one flush is there once.
func (b *bench) expect(head, times int, shard message.ShardID, id store.FlushID) error {
	gotHead := scan[int](b, "SELECT head FROM dispatcher.shards WHERE id = $1", shard)
	gotTimes := scan[int](b, "SELECT count(*) FROM dispatcher.segments WHERE shard_id = $1 AND flush_id = $2", shard, id)
	if gotHead != head || gotTimes != times {
		return fmt.Errorf("head %d, %d segments; want %d and %d", gotHead, gotTimes, head, times)
	}
	return nil
}

func TestKeyedFlushCutOffAtCommitIsNeitherLostNorDoubled(t *testing.T) {
	t.Parallel()
	everyCut(t, func(b *bench) (func(*store.Store) error, func() error) {
		shard := b.shard()
		key := store.Key{ID: store.KeyID(flushID()), BodyHash: 3}
		act := func(s *store.Store) error {
			for range 5 {
				_, _, err := pushKeyed(b, s, shard, key)
				if err == nil {
					return nil
				}
				if !pg.IsOutcomeUnknown(err) && !pg.IsRetryable(err) {
					return err
				}
				if _, _, err := s.FindFlush(b.t.Context(), []store.Sought{{Shard: shard, FlushID: flushID()}}); err != nil { // ends what was lost; the key does the rest
					return err
				}
			}
			return errNeverDone
		}
		return act, func() error {
			if head := scan[int](b, "SELECT head FROM dispatcher.shards WHERE id = $1", shard); head != 1 {
				return fmt.Errorf("head %d", head)
			}
			return nil
		}
	})
}

func TestWorkCutOffAtCommitIsNeitherLostNorDoubled(t *testing.T) {
	t.Parallel()
	everyCut(t, func(b *bench) (func(*store.Store) error, func() error) {
		gs := b.groupShard(b.shard())
		change := window.Change{ID: gs, From: 1, To: 2, LeaseInserts: []window.LeaseInsert{{Epoch: lease.MakeEpoch(2, 0), Lease: time.Minute, Holder: "h"}}}
		act := func(s *store.Store) error {
			results, err := s.Work(b.t.Context(), []window.Change{change})
			if err == nil && results[0].Applied {
				return nil
			}
			if err != nil && !pg.IsOutcomeUnknown(err) {
				return fmt.Errorf("a cut in its only message leaves the outcome open: %w", err)
			}
			return underLock(b, s, change)
		}
		return act, func() error { return b.expectVersion(gs, 2) }
	})
}

func TestWorkUnderLockCutOffIsNeitherLostNorDoubled(t *testing.T) {
	t.Parallel()
	everyCut(t, func(b *bench) (func(*store.Store) error, func() error) {
		gs := b.groupShard(b.shard())
		change := window.Change{ID: gs, From: 1, To: 2, LeaseInserts: []window.LeaseInsert{{Epoch: lease.MakeEpoch(2, 0), Lease: time.Minute, Holder: "h"}}}
		return func(s *store.Store) error { return underLock(b, s, change) }, func() error { return b.expectVersion(gs, 2) }
	})
}

// underLock makes the change unless it is there already.
func underLock(b *bench, s *store.Store, change window.Change) error {
	for range 5 {
		_, _, err := s.WorkLocked(b.t.Context(), change.ID, window.Known{}, func(state store.State) (window.Change, error) {
			if state.Row.Version != change.From {
				return window.Change{ID: change.ID}, nil
			}
			return change, nil
		})
		if err == nil {
			return nil
		}
		if !pg.IsOutcomeUnknown(err) && !pg.IsRetryable(err) {
			return err
		}
	}
	return errNeverDone
}

func (b *bench) expectVersion(gs lease.GroupShardID, want window.Version) error {
	state, err := b.store.Snapshot(b.t.Context(), gs)
	if err != nil {
		return err
	}
	if state.Row.Version != want || len(state.Leases) != 1 {
		return fmt.Errorf("version %d with %d leases", state.Row.Version, len(state.Leases))
	}
	return nil
}
