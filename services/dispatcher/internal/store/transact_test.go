package store_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"postrider.dev/pkg/idempotency"
	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/lease"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/window"
	"postrider.dev/services/dispatcher/internal/store"
)

const transactMethod = "/transact"

func transaction(key string, works []lease.GroupShardID, shards ...message.ShardID) store.Transaction {
	t := store.Transaction{Request: idempotency.Request{Tenant: "a", Method: transactMethod, Key: key, Body: sha256.Sum256([]byte("body"))}}
	for _, id := range works {
		t.Works = append(t.Works, store.Worked{ID: id})
	}
	for _, id := range shards {
		t.Appends = append(t.Appends, store.KeyedAppend{Shard: id, Window: time.Hour, Keys: []store.Key{{ID: keyOf(key + strconv.Itoa(int(id))), BodyHash: 1}}})
	}
	return t
}

// grantAndAppend grants a lease on each group-shard and appends one message to each shard.
func grantAndAppend(t *store.Transaction) store.Judge {
	return func(st *store.Standing) (store.Judged, error) {
		judged := store.Judged{Answer: []byte("answer"), Rests: make([]store.Remainder, len(t.Appends))}
		for i := range t.Works {
			if st.Gone[i] {
				return judged, store.ErrGone
			}
			judged.Changes = append(judged.Changes, grant(st.States[i]))
		}
		for i, a := range t.Appends {
			if st.Shards[i].Status != store.StatusNothing {
				return judged, errClosed
			}
			at := st.Locked(i)
			judged.Rests[i] = store.Remainder{Append: appendOf(a.Shard, 7), Keys: []store.NewKey{{Key: a.Keys[0], Offset: at.Base}}}
		}
		return judged, nil
	}
}

var errClosed = errors.New("a shard takes nothing")

// versions are those of group-shards, and heads those of shards.
func (b *bench) versions(works []lease.GroupShardID, shards []message.ShardID) string {
	return scan[string](b, `SELECT coalesce((SELECT string_agg(version::text, ',' ORDER BY id) FROM dispatcher.group_shards WHERE id = ANY ($1)), '') || ' ' ||
		coalesce((SELECT string_agg(head::text, ',' ORDER BY id) FROM dispatcher.shards WHERE id = ANY ($2)), '')`, works, shards)
}

func TestATransactionIsAllOrNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shards := []message.ShardID{b.shard(), b.shard()}
	works := []lease.GroupShardID{b.groupShard(shards[0]), b.groupShard(shards[1])}
	tx := transaction("k", works, shards...)
	errJudge := errors.New("refused")
	_, err := b.store.Transact(t.Context(), tx, func(*store.Standing) (store.Judged, error) { return store.Judged{}, errJudge })
	require.ErrorIs(t, err, errJudge)
	require.Equal(t, "1,1 0,0", b.versions(works, shards))
	for name, bad := range map[string]func(*store.Judged){
		"a change that waits":         func(j *store.Judged) { j.Changes[1].NotBefore = 1 },
		"a dead letter without an id": func(j *store.Judged) { j.Changes[1].DeadLetters = []window.DeadLetter{{Reason: window.DeadRejected}} },
		"a value the database refuses": func(j *store.Judged) {
			j.Changes[1].LeaseInserts = append(j.Changes[1].LeaseInserts, j.Changes[1].LeaseInserts[0])
		},
		"a message without its numbers": func(j *store.Judged) { j.Rests[1].Partitions = nil },
	} {
		_, err := b.store.Transact(t.Context(), tx, func(st *store.Standing) (store.Judged, error) {
			judged, err := grantAndAppend(&tx)(st)
			bad(&judged)
			return judged, err
		})
		require.Error(t, err, name)
		require.Equal(t, "1,1 0,0", b.versions(works, shards), name)
	}
	require.Zero(t, scan[int](b, "SELECT count(*) FROM dispatcher.request_keys"))

	done, err := b.store.Transact(t.Context(), tx, grantAndAppend(&tx))
	require.NoError(t, err)
	require.Equal(t, "2,2 1,1", b.versions(works, shards))
	require.True(t, done.Works[0].Applied && done.Works[1].Applied)
	require.Equal(t, store.StatusAppended, done.Appended[1].Status)
	require.Equal(t, 1, done.Appended[1].Count)
}

func TestATransactionUnderAKeyIsDoneOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	works := []lease.GroupShardID{b.groupShard(shard)}
	tx := transaction("k", works, shard)
	_, other := b.open(nil)
	for i, s := range []*store.Store{b.store, other, b.store} {
		done, err := s.Transact(t.Context(), tx, grantAndAppend(&tx))
		require.NoError(t, err)
		require.Equal(t, i > 0, done.Replayed)
		require.Equal(t, "answer", string(done.Answer))
	}
	require.Equal(t, "2 1", b.versions(works, []message.ShardID{shard}))
	answer, found, err := other.Answered(t.Context(), tx.Request)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "answer", string(answer))

	another := tx
	another.Request.Body = sha256.Sum256([]byte("another"))
	_, err = b.store.Transact(t.Context(), another, grantAndAppend(&tx))
	require.ErrorIs(t, err, idempotency.ErrReused)
	_, _, err = b.store.Answered(t.Context(), another.Request)
	require.ErrorIs(t, err, idempotency.ErrReused)
	free := transaction("free", works, shard)
	_, found, err = b.store.Answered(t.Context(), free.Request)
	require.NoError(t, err)
	require.False(t, found)
	_, err = b.store.Transact(t.Context(), store.Transaction{}, grantAndAppend(&tx))
	require.Error(t, err, "without a key nobody could find it")

	b.exec("UPDATE dispatcher.request_keys SET created_at = created_at - interval '61 minutes'")
	control := store.NewControl(b.store, nil, nil)
	n, err := control.TrimTransactions(t.Context(), "/other", 10)
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = control.TrimTransactions(t.Context(), transactMethod, 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

func TestATransactionWhoseKeyIsInUseIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	first, second := b.shard(), b.shard()
	tx, other := transaction("k", nil, first), transaction("k", nil, second)
	_, s := b.open(nil)
	_, err := b.store.Transact(t.Context(), tx, func(st *store.Standing) (store.Judged, error) {
		_, err := s.Transact(t.Context(), other, grantAndAppend(&other))
		require.ErrorIs(t, err, idempotency.ErrInUse)
		return grantAndAppend(&tx)(st)
	})
	require.NoError(t, err)
	require.Equal(t, " 1,0", b.versions(nil, []message.ShardID{first, second}))
}

func TestATransactionCutOffAtCommitIsNeitherLostNorDoubled(t *testing.T) {
	t.Parallel()
	n := 0
	everyCut(t, func(b *bench) (func(*store.Store) error, func() error) {
		n++
		shards := []message.ShardID{b.shard(), b.shard()}
		works := []lease.GroupShardID{b.groupShard(shards[0]), b.groupShard(shards[1])}
		tx := transaction(strconv.Itoa(n), works, shards...)
		act := func(s *store.Store) error {
			for range 8 {
				done, err := s.Transact(b.t.Context(), tx, grantAndAppend(&tx))
				if err == nil && string(done.Answer) != "answer" {
					return fmt.Errorf("answered %q", done.Answer)
				}
				if err == nil {
					return nil
				}
				if !pg.IsOutcomeUnknown(err) && !pg.IsRetryable(err) {
					return err
				}
			}
			return errNeverDone
		}
		return act, func() error {
			if got := b.versions(works, shards); got != "2,2 1,1" {
				return fmt.Errorf("versions and heads are %s", got)
			}
			return nil
		}
	})
}

// Everybody who takes several locks is at work: transactions in both orders, flushes of both shards, work on both group-shards.
func TestTransactionsFlushesAndWorkInAnyOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shards := []message.ShardID{b.shard(), b.shard(), b.shard()}
	works := []lease.GroupShardID{b.groupShard(shards[0]), b.groupShard(shards[1])}
	const rounds = 40
	var group errgroup.Group
	for i := range 2 {
		_, s := b.open(nil)
		group.Go(func() error {
			for round := range rounds {
				tx := transaction(fmt.Sprint(i, " ", round), works, shards...)
				if i == 1 {
					tx = transaction(fmt.Sprint(i, " ", round), []lease.GroupShardID{works[1], works[0]}, shards[2], shards[1], shards[0])
				}
				if _, err := s.Transact(t.Context(), tx, grantAndAppend(&tx)); err != nil {
					return err
				}
			}
			return nil
		})
		group.Go(func() error {
			for range rounds {
				if _, err := s.Flush(t.Context(), []store.Append{appendOf(shards[2], 1), appendOf(shards[0], 1), appendOf(shards[1], 1)}); err != nil {
					return err
				}
			}
			return nil
		})
		group.Go(func() error { return rivalWork(t.Context(), s, works, rounds) })
	}

	require.NoError(t, group.Wait())
	require.Zero(t, scan[int](b, "SELECT deadlocks::int FROM pg_stat_database WHERE datname = current_database()"))
	require.Equal(t, 4*rounds, scan[int](b, "SELECT head::int FROM dispatcher.shards WHERE id = $1", shards[0]))
}

// rivalWork changes both group-shards in one transaction, whoever else does.
func rivalWork(ctx context.Context, s *store.Store, works []lease.GroupShardID, rounds int) error {
	for range rounds {
		var changes []window.Change
		for _, id := range []lease.GroupShardID{works[1], works[0]} {
			state, err := s.Snapshot(ctx, id)
			if err != nil {
				return err
			}
			changes = append(changes, grant(state))
		}
		if _, err := s.Work(ctx, changes); err != nil {
			return err
		}
	}
	return nil
}

func TestATransactionThatKnowsMoreThanTheDatabaseReadsItFromTheStart(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	works := []lease.GroupShardID{b.groupShard(shard)}
	tx := transaction("k", works, shard)
	tx.Works[0].Known = window.Known{Version: 50}
	tx.Appends[0].Known = 1000

	_, err := b.store.Transact(t.Context(), tx, grantAndAppend(&tx))

	require.NoError(t, err)
	require.Equal(t, "2 1", b.versions(works, []message.ShardID{shard}))
}

func TestATransactionSeesWhatIsGoneAndSealed(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	open, sealed := b.shard(), b.shard()
	b.exec("UPDATE dispatcher.shards SET sealed = true WHERE id = $1", sealed)
	gone := lease.GroupShardID(1 << 40)
	tx := transaction("k", []lease.GroupShardID{gone}, open, sealed, 1<<40)

	_, err := b.store.Transact(t.Context(), tx, func(st *store.Standing) (store.Judged, error) {
		require.Equal(t, []bool{true}, st.Gone)
		require.Equal(t, store.StatusNothing, st.Shards[0].Status)
		require.Equal(t, store.StatusSealed, st.Shards[1].Status)
		require.Equal(t, store.StatusGone, st.Shards[2].Status)
		return store.Judged{}, errClosed
	})
	require.ErrorIs(t, err, errClosed)
}
