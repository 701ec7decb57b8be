package store_test

import (
	"crypto/sha256"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/store"
)

func keyOf(name string) store.KeyID {
	return store.KeyID(sha256.New().Sum([]byte(name + "                "))[:16])
}

// pushKeyed pushes one message a key, with a window of an hour, the way the engine does: what is new is appended, and its key remembered.
func pushKeyed(b *bench, s *store.Store, shard message.ShardID, keys ...store.Key) (store.Appended, []store.KeyState, error) {
	var seen []store.KeyState
	results, err := s.FlushKeyed(b.t.Context(), []store.KeyedAppend{{Shard: shard, Window: time.Hour, Keys: keys}},
		func(_ int, at store.Locked, states []store.KeyState) (store.Remainder, error) {
			seen = states
			var rest store.Remainder
			var hashes []uint64
			for i, state := range states {
				if state.Err == nil && !state.Duplicate {
					rest.Keys = append(rest.Keys, store.NewKey{Key: keys[i], Offset: at.Base + message.Offset(len(hashes))})
					hashes = append(hashes, keys[i].BodyHash)
				}
			}
			rest.Append = appendOf(shard, hashes...)
			return rest, nil
		})
	if err != nil {
		return store.Appended{}, nil, err
	}
	return results[0], seen, nil
}

func TestRacingPushesWithOneKeyYieldOneMessage(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	const racers, rounds = 4, 25
	var won [rounds]atomic.Int32

	var group errgroup.Group
	for racer := range racers {
		_, s := b.open(nil)
		group.Go(func() error {
			for round := range rounds {
				shared := store.Key{ID: keyOf("round " + strconv.Itoa(round)), BodyHash: 1}
				own := store.Key{ID: keyOf(strconv.Itoa(racer) + " in " + strconv.Itoa(round)), BodyHash: 2}
				r, states, err := pushKeyed(b, s, shard, own, shared)
				if err != nil {
					return err
				}
				if !states[1].Duplicate {
					won[round].Add(1)
				}
				if want := 2 - toInt(states[1].Duplicate); r.Count != want || states[0].Duplicate {
					t.Errorf("round %d: %d messages, want %d", round, r.Count, want)
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())

	for round := range rounds {
		require.EqualValues(t, 1, won[round].Load(), "round %d", round)
	}
	require.Equal(t, rounds*(racers+1), scan[int](b, "SELECT head FROM dispatcher.shards WHERE id = $1", shard))
	require.Equal(t, rounds*(racers+1), scan[int](b, "SELECT count(DISTINCT \"offset\") FROM dispatcher.idempotency_keys"))
}

func TestDuplicateIsToldTheFirstOffsetAndAnotherBodyIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	first := store.Key{ID: keyOf("a"), BodyHash: 1 << 63}
	_, _, err := pushKeyed(b, b.store, shard, store.Key{ID: keyOf("z"), BodyHash: 9}, first)
	require.NoError(t, err)

	r, states, err := pushKeyed(b, b.store, shard, first, store.Key{ID: keyOf("z"), BodyHash: 10})
	require.NoError(t, err)

	require.Equal(t, store.StatusNothing, r.Status)
	require.Equal(t, store.KeyState{Duplicate: true, Offset: 1}, states[0])
	require.ErrorIs(t, states[1].Err, store.ErrKeyReused)
	require.Equal(t, 2, scan[int](b, "SELECT head FROM dispatcher.shards WHERE id = $1", shard))
}

func TestKeyIsForgottenAfterItsWindow(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	key := store.Key{ID: keyOf("a"), BodyHash: 1}
	clock := freezeClock(b, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	push := func() (store.Appended, store.KeyState) {
		r, states, err := pushKeyed(b, b.store, shard, key)
		require.NoError(t, err)
		return r, states[0]
	}

	push()
	clock.advance(time.Hour - time.Microsecond)
	_, inside := push()
	clock.advance(time.Microsecond)
	r, outside := push()
	clock.advance(time.Hour - time.Microsecond)
	_, again := push()

	require.True(t, inside.Duplicate)
	require.False(t, outside.Duplicate)
	require.Equal(t, message.Offset(1), r.Base)
	require.Equal(t, store.KeyState{Duplicate: true, Offset: 1}, again, "the new use counts from its own time")
	require.Equal(t, 1, scan[int](b, "SELECT count(*) FROM dispatcher.idempotency_keys"))
}

func TestWholeRequestIsAnsweredAsTheFirstTime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shard := b.shard()
	request := store.Key{ID: keyOf("request"), BodyHash: 5}
	push := func() (store.Appended, store.KeyState) {
		var state store.KeyState
		results, err := b.store.FlushKeyed(t.Context(), []store.KeyedAppend{{Shard: shard, Window: time.Hour, Keys: []store.Key{request}}},
			func(_ int, at store.Locked, states []store.KeyState) (store.Remainder, error) {
				if state = states[0]; state.Duplicate {
					return store.Remainder{}, nil
				}
				return store.Remainder{Append: appendOf(shard, 1, 2, 3), Keys: []store.NewKey{{Key: request, Offset: at.Base, Answer: []byte("told")}}}, nil
			})
		require.NoError(t, err)
		return results[0], state
	}

	first, _ := push()
	second, state := push()

	require.Equal(t, 3, first.Count)
	require.Equal(t, store.StatusNothing, second.Status)
	require.Equal(t, store.KeyState{Duplicate: true, Answer: []byte("told")}, state)
}

func TestKeyedFlushWritesNothingWhenEncodingFails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	shards := []message.ShardID{b.shard(), b.shard()}
	refused := errors.New("refused")

	_, err := b.store.FlushKeyed(t.Context(), []store.KeyedAppend{{Shard: shards[0]}, {Shard: shards[1]}},
		func(i int, _ store.Locked, _ []store.KeyState) (store.Remainder, error) {
			if i == 1 {
				return store.Remainder{}, refused
			}
			return store.Remainder{Append: appendOf(shards[0], 1)}, nil
		})

	require.ErrorIs(t, err, refused)
	require.Zero(t, scan[int](b, "SELECT count(*) FROM dispatcher.segments"))
	_, err = b.store.Flush(t.Context(), []store.Append{appendOf(shards[0], 1), appendOf(shards[1], 1)})
	require.NoError(t, err, "no lock is left behind")
}

func TestKeyedFlushSaysWhatIsSealedOrGone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	good, sealed := b.shard(), b.shard()
	b.exec("UPDATE dispatcher.shards SET sealed = true WHERE id = $1", sealed)

	results, err := b.store.FlushKeyed(t.Context(), []store.KeyedAppend{{Shard: sealed}, {Shard: 99_999, Known: 5}, {Shard: good, Known: 1_000}},
		func(int, store.Locked, []store.KeyState) (store.Remainder, error) {
			return store.Remainder{Append: appendOf(good, 1)}, nil
		})
	require.NoError(t, err)

	require.Equal(t, store.StatusSealed, results[0].Status)
	require.Equal(t, store.StatusGone, results[1].Status)
	require.Equal(t, store.StatusAppended, results[2].Status)
}

func TestOldKeysAreTrimmedInBatches(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.exec(`INSERT INTO dispatcher.idempotency_keys (key, shard_id, "offset", body_hash, created_at)
		SELECT gen_random_uuid(), 1, i, 0, now() - make_interval(hours => i) FROM generate_series(1, 100) i`)

	first, err := b.store.TrimKeys(t.Context(), 50*time.Hour, 30)
	require.NoError(t, err)
	second, err := b.store.TrimKeys(t.Context(), 50*time.Hour, 30)
	require.NoError(t, err)

	require.Equal(t, 30, first)
	require.Equal(t, 21, second)
	require.Equal(t, 49, scan[int](b, "SELECT count(*) FROM dispatcher.idempotency_keys"))
}
