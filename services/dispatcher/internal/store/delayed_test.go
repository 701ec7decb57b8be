package store_test

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"postrider.dev/pkg/pg"
	"postrider.dev/services/dispatcher/internal/domain/message"
	"postrider.dev/services/dispatcher/internal/domain/segment"
	"postrider.dev/services/dispatcher/internal/store"
)

// delay accepts messages of one partition for later, in one flush, the way the engine does.
func delay(t testing.TB, s *store.Store, shard message.ShardID, at time.Time, payloads ...string) []message.PendingID {
	t.Helper()
	rest := store.Remainder{Append: store.Append{Shard: shard, FlushID: flushID()}}
	var ids []message.PendingID
	for _, payload := range payloads {
		id := message.PendingID(flushID())
		ids = append(ids, id)
		rest.Keys = append(rest.Keys, store.NewKey{Key: store.Key{ID: store.KeyID(id)}, Offset: -1})
		rest.Delayed = append(rest.Delayed, store.Delayed{
			Pending: message.Pending{ID: id, AvailableAt: at},
			Frame:   message.AppendFrame(nil, &message.Message{Partition: "p", Payload: []byte(payload)}),
		})
	}
	results, err := s.FlushKeyed(t.Context(), []store.KeyedAppend{{Shard: shard}},
		func(int, store.Locked, []store.KeyState) (store.Remainder, error) { return rest, nil })
	require.NoError(t, err)
	require.Equal(t, store.StatusNothing, results[0].Status)
	return ids
}

// flushDue moves all that is due and returns what it moved, by batch.
func flushDue(t testing.TB, c *store.Control) (batches []store.Due) {
	t.Helper()
	for {
		due, err := c.FlushDue(t.Context(), time.Time{}, nil)
		require.NoError(t, err)
		if !due.More {
			return batches
		}
		batches = append(batches, due)
	}
}

// payloadsOf reads the whole log of a shard.
func payloadsOf(c *cold, q store.Queue) (out []string) {
	for offset := message.Offset(0); ; offset++ {
		f, err := c.control.FindByID(c.t.Context(), q, message.ID{Shard: q.Shards[0], Offset: offset})
		if err != nil {
			require.ErrorIs(c.t, err, store.ErrMessageNotFound)
			return out
		}
		out = append(out, string(f.Payload))
	}
}

func TestDelayedMessagesComeWhenTheyAreDueAndNotBefore(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	t0 := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	clock := freezeClock(c.bench, t0)
	late := delay(t, c.store, q.Shards[0], t0.Add(2*time.Hour), "late")
	early := delay(t, c.store, q.Shards[0], t0.Add(time.Hour), "early 1", "early 2")
	again := delay(t, c.store, q.Shards[0], t0.Add(time.Hour), "early 3")

	clock.advance(time.Hour - time.Microsecond)
	before := flushDue(t, c.control)
	now, next, err := c.control.NextDue(t.Context(), time.Time{}, nil)
	require.NoError(t, err)
	clock.advance(time.Microsecond)
	first := flushDue(t, c.control)
	clock.advance(time.Hour)
	second := flushDue(t, c.control)

	require.Empty(t, before)
	require.Equal(t, time.Microsecond, next.Sub(now))
	require.Equal(t, []string{"early 1", "early 2", "early 3", "late"}, payloadsOf(c, q))
	require.True(t, first[0].Shards[0].CreatedAt.Equal(t0.Add(time.Hour)))
	require.True(t, second[0].Shards[0].CreatedAt.Equal(t0.Add(2*time.Hour)))
	for want, id := range []message.PendingID{early[0], early[1], again[0], late[0]} {
		f, err := c.control.FindPending(t.Context(), q, id)
		require.NoError(t, err)
		require.EqualValues(t, want, f.Offset)
		require.Zero(t, f.AvailableAt)
	}
	require.Zero(t, scan[int](c.bench, "SELECT count(*) FROM dispatcher.delayed"))
	_, next, err = c.control.NextDue(t.Context(), time.Time{}, nil)
	require.NoError(t, err)
	require.Zero(t, next)
}

func TestAPendingIDFindsItsMessageWhereItIsAndInItsQueueOnly(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q, other := c.queue("a", "q"), c.queue("b", "q")
	at := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	id := delay(t, c.store, q.Shards[0], at, "x")[0]

	f, err := c.control.FindPending(t.Context(), q, id)
	require.NoError(t, err)
	_, foreign := c.control.FindPending(t.Context(), other, id)
	_, unknown := c.control.FindPending(t.Context(), q, message.PendingID{1})

	require.True(t, f.AvailableAt.Equal(at))
	require.Equal(t, "x", string(f.Payload))
	require.ErrorIs(t, foreign, store.ErrMessageNotFound)
	require.ErrorIs(t, unknown, store.ErrMessageNotFound)
}

func TestRacingDispatchersMoveEachMessageOnceAndInOrder(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	const movers, queues, each, batch = 3, 2, 4000, 1000
	at := time.Now().Add(-time.Second)
	all := make([]store.Queue, queues)
	for i := range all {
		all[i] = c.queue("a", "q"+strconv.Itoa(i))
		for from := 0; from < each; from += batch {
			names := make([]string, batch)
			for j := range names {
				names[j] = strconv.Itoa(from + j)
			}
			delay(t, c.store, all[i].Shards[0], at, names...)
		}
	}

	var mu sync.Mutex
	frames := map[message.ShardID]map[message.Offset]string{}
	noErrors(t, race(movers, func(int) error {
		control := c.another()
		for scan[int](c.bench, "SELECT count(*) FROM dispatcher.delayed") > 0 {
			due, err := control.FlushDue(t.Context(), time.Time{}, nil)
			if err != nil {
				return err
			}
			mu.Lock()
			for _, s := range due.Shards {
				if frames[s.Shard] == nil {
					frames[s.Shard] = map[message.Offset]string{}
				}
				for j, f := range s.Frames {
					m, err := message.ParseFrame(f.Bytes)
					if err != nil {
						return err
					}
					frames[s.Shard][s.Base+message.Offset(j)] = string(m.Payload)
				}
			}
			mu.Unlock()
		}
		return nil
	}))

	for _, q := range all {
		got := frames[q.Shards[0]]
		require.Len(t, got, each)
		for offset := range message.Offset(each) {
			require.Equal(t, strconv.Itoa(int(offset)), got[offset])
		}
		require.Equal(t, each, scan[int](c.bench, "SELECT head FROM dispatcher.shards WHERE id = $1", q.Shards[0]))
	}
}

func TestAStormOfDueMessagesIsAppendedInBoundedBatches(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	q := c.queue("a", "q")
	frame := message.AppendFrame(nil, &message.Message{Partition: "p", Payload: []byte("x")})
	large := message.AppendFrame(nil, &message.Message{Partition: "p", Payload: make([]byte, store.DueBytes/2)})
	c.exec(`INSERT INTO dispatcher.delayed (key, shard_id, available_at, frame)
		SELECT gen_random_uuid(), $1, now() - interval '1 s', $2 FROM generate_series(1, 10000)`, q.Shards[0], frame)
	c.exec(`INSERT INTO dispatcher.delayed (key, shard_id, available_at, frame)
		SELECT gen_random_uuid(), $1, now(), $2 FROM generate_series(1, 5)`, q.Shards[0], large)

	batches := flushDue(t, c.control)

	total := 0
	for _, b := range batches {
		bytes := 0
		for _, f := range b.Shards[0].Frames {
			bytes += len(f.Bytes)
		}
		total += len(b.Shards[0].Frames)
		require.LessOrEqual(t, len(b.Shards[0].Frames), store.DueMessages)
		require.Less(t, bytes, store.DueBytes+len(large))
	}
	require.Equal(t, 10_005, total)
	require.GreaterOrEqual(t, len(batches), 7)
	require.Equal(t, 10_005, scan[int](c.bench, "SELECT head FROM dispatcher.shards WHERE id = $1", q.Shards[0]))
}

func TestMessagesThatWaitGoWithTheirQueue(t *testing.T) {
	t.Parallel()
	c := newCold(t)
	gone, kept := c.queue("a", "gone"), c.queue("a", "kept")
	delay(t, c.store, gone.Shards[0], time.Now().Add(-time.Second), "due")
	delay(t, c.store, gone.Shards[0], time.Now().Add(time.Hour), "later")
	delay(t, c.store, kept.Shards[0], time.Now().Add(time.Hour), "kept")
	stats, err := c.control.QueueStats(t.Context(), []int64{gone.ID, kept.ID})
	require.NoError(t, err)

	_, err = c.control.DeleteQueue(t.Context(), by("a"), "gone", false)
	require.NoError(t, err)
	flushed := flushDue(t, c.control)
	c.purgeAll()

	require.EqualValues(t, 2, stats[gone.ID].Delayed)
	require.EqualValues(t, 1, stats[kept.ID].Delayed)
	require.Zero(t, stats[gone.ID].Messages)
	require.Empty(t, slices.DeleteFunc(flushed, func(d store.Due) bool { return len(d.Shards) == 0 }), "nothing is appended to a deleted queue")
	require.Equal(t, 1, scan[int](c.bench, "SELECT count(*) FROM dispatcher.delayed"))
}

func TestDueMessagesCutOffAtCommitAreNeitherLostNorDoubled(t *testing.T) {
	t.Parallel()
	enc, err := segment.NewEncoder(1)
	require.NoError(t, err)
	everyCut(t, func(b *bench) (func(*store.Store) error, func() error) {
		queue := scan[int64](b, "INSERT INTO dispatcher.queues (tenant_id, name, shard_ids) VALUES ('a', gen_random_uuid()::text, '{}') RETURNING id")
		shard := scan[message.ShardID](b, "INSERT INTO dispatcher.shards (queue_id) VALUES ($1) RETURNING id", queue)
		ids := delay(b.t, b.store, shard, time.Now().Add(-time.Second), "x", "y")
		act := func(s *store.Store) error {
			control := store.NewControl(s, enc, nil)
			for range 5 {
				due, err := control.FlushDue(b.t.Context(), time.Time{}, nil)
				switch {
				case err == nil && !due.More:
					return nil
				case err != nil && !pg.IsOutcomeUnknown(err) && !pg.IsRetryable(err):
					return err
				}
			}
			return errNeverDone
		}
		return act, func() error {
			head := scan[int](b, "SELECT head FROM dispatcher.shards WHERE id = $1", shard)
			left := scan[int](b, "SELECT count(*) FROM dispatcher.delayed WHERE shard_id = $1", shard)
			places := scan[string](b, `SELECT string_agg("offset"::text, ',' ORDER BY "offset") FROM dispatcher.idempotency_keys WHERE key = ANY ($1)`, ids)
			if head != 2 || left != 0 || places != "0,1" {
				return fmt.Errorf("head %d, %d left, places %s", head, left, places)
			}
			return nil
		}
	})
}

func TestAcceptingForLaterCutOffAtCommitIsFoundByItsPendingID(t *testing.T) {
	t.Parallel()
	everyCut(t, func(b *bench) (func(*store.Store) error, func() error) {
		shard := b.shard()
		id := message.PendingID(flushID())
		rest := store.Remainder{
			Append:  store.Append{FlushID: flushID()},
			Keys:    []store.NewKey{{Key: store.Key{ID: store.KeyID(id)}, Offset: -1}},
			Delayed: []store.Delayed{{Pending: message.Pending{ID: id, AvailableAt: time.Now().Add(time.Hour)}, Frame: []byte{1}}},
		}
		act := func(s *store.Store) error {
			for range 5 {
				_, err := s.FlushKeyed(b.t.Context(), []store.KeyedAppend{{Shard: shard}},
					func(int, store.Locked, []store.KeyState) (store.Remainder, error) { return rest, nil })
				if err == nil {
					return nil
				}
				if !pg.IsOutcomeUnknown(err) && !pg.IsRetryable(err) {
					return err
				}
				_, found, err := s.FindFlush(b.t.Context(), []store.Sought{{Shard: shard, FlushID: rest.FlushID, Pending: []message.PendingID{id}}})
				if found || err != nil {
					return err
				}
			}
			return errNeverDone
		}
		return act, func() error {
			if n := scan[int](b, "SELECT count(*) FROM dispatcher.delayed WHERE shard_id = $1", shard); n != 1 {
				return fmt.Errorf("%d messages wait", n)
			}
			return nil
		}
	})
}
